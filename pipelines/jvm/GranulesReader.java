package sentencepipelines;

import org.apache.spark.api.java.function.Function;

/** {@link Granules#read} for Spark. */
public class GranulesReader implements Function {
  public Object call(Object bytes) {
    return Granules.read((byte[]) bytes);
  }
}
