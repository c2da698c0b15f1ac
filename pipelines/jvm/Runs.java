package sentencepipelines;

import com.intel.analytics.bigdl.dllib.feature.DRAMFeatureSet$;
import com.intel.analytics.bigdl.dllib.feature.dataset.DistributedDataSet;
import com.intel.analytics.bigdl.dllib.feature.dataset.MiniBatch;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractCriterion;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.optim.DistriOptimizer;
import com.intel.analytics.bigdl.dllib.utils.Engine$;
import java.util.Iterator;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.storage.RDDBlockId;
import scala.reflect.ClassTag$;

/** What is asked of dllib and Spark on the driver, where Scala's types are wanted. */
public final class Runs {
  private Runs() {}

  /** Tells dllib how many workers there are, which it would guess from the master's address. */
  public static void workers(int workers, int threads) {
    Engine$.MODULE$.setNodeAndCore(workers, threads);
  }

  /** A data set of {@link Granules} in the order of the steps, of which each is read once. */
  public static DistributedDataSet data(JavaRDD bytes) {
    return (DistributedDataSet) DRAMFeatureSet$.MODULE$
        .rdd(bytes.map(new GranulesReader()).rdd(), true, false,
            ClassTag$.MODULE$.apply(MiniBatch.class))
        .toDataSet();
  }

  /** An optimiser whose gradients travel as they are, or as the upper half of their bits. */
  public static DistriOptimizer optimizer(AbstractModule model, DistributedDataSet data,
      AbstractCriterion criterion, String compression) {
    return new DistriOptimizer(model, data, criterion, Floats.FLOAT, Floats.NUMERIC)
        .setCompressType(compression);
  }

  /**
   * The executors that hold the partitions of a cached RDD.
   *
   * @return Host and port of their block managers, by partition; null where it is nowhere, and for
   *     all together where there is no such RDD.
   */
  public static String places(JavaSparkContext context, String name, int partitions) {
    StringBuilder places = new StringBuilder();
    for (Iterator rdds = context.getPersistentRDDs().values().iterator(); rdds.hasNext(); ) {
      JavaRDD rdd = (JavaRDD) rdds.next();
      if (name.equals(rdd.name())) {
        places.setLength(0);
        for (int partition = 0; partition < partitions; partition++) {
          places.append(place(new RDDBlockId(rdd.id(), partition))).append('\n');
        }
      }
    }
    return places.toString();
  }

  private static String place(RDDBlockId block) {
    scala.collection.Seq found = SparkEnv.get().blockManager().master().getLocations(block);
    return found.isEmpty() ? "" : ((BlockManagerId) found.apply(0)).hostPort();
  }
}
