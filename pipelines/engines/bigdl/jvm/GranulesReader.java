package sentencepipelines;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.util.CollectionAccumulator;

/** {@link Granules#read} for Spark; tells the driver what the executors' hosts are called. */
public class GranulesReader implements Function {
  private final CollectionAccumulator names;
  private transient boolean told = false;

  /**
   * @param names Gets the address by which Spark knows a host, and the host's own name, with a
   *     space between them.
   */
  public GranulesReader(CollectionAccumulator names) {
    this.names = names;
  }

  public Object call(Object bytes) {
    if (!told) {
      told = true;
      names.add(SparkEnv.get().blockManager().blockManagerId().host() + " " + ownName());
    }
    return Granules.read((byte[]) bytes);
  }

  /** The name, which Java would look for in the network. */
  private static String ownName() {
    try {
      return new String(Files.readAllBytes(Paths.get("/proc/sys/kernel/hostname"))).trim();
    } catch (IOException error) {
      return "";
    }
  }
}
