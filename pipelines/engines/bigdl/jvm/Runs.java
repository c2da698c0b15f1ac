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
import org.apache.spark.util.CollectionAccumulator;
import scala.Tuple2;
import scala.collection.JavaConverters;
import scala.reflect.ClassTag$;

/** What is asked of dllib and Spark on the driver, where Scala's types are wanted. */
public final class Runs {
  private Runs() {}

  /** Tells dllib how many workers there are, which it would guess from the master's address. */
  public static void workers(int workers, int threads) {
    Engine$.MODULE$.setNodeAndCore(workers, threads);
  }

  /**
   * A data set of {@link Granules} in the order of the steps, of which each is read once.
   *
   * @param names See {@link GranulesReader}.
   */
  public static DistributedDataSet data(JavaRDD bytes, CollectionAccumulator names) {
    return (DistributedDataSet) DRAMFeatureSet$.MODULE$
        .rdd(bytes.map(new GranulesReader(names)).rdd(), true, false,
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
   * @return Host and port of their block managers, a line for each partition, empty where it is
   *     nowhere; of the newest RDD of the name; nothing where there is none.
   */
  public static String locations(JavaSparkContext context, String name, int partitions) {
    StringBuilder places = new StringBuilder();
    int newest = -1;
    for (Iterator rdds = context.getPersistentRDDs().values().iterator(); rdds.hasNext(); ) {
      JavaRDD rdd = (JavaRDD) rdds.next();
      if (name.equals(rdd.name()) && rdd.id() > newest) {
        newest = rdd.id();
        places.setLength(0);
        for (int partition = 0; partition < partitions; partition++) {
          places.append(place(new RDDBlockId(rdd.id(), partition))).append('\n');
        }
      }
    }
    return places.toString();
  }

  /**
   * Removes what dllib leaves in the executors, which Spark does not know to be garbage.
   *
   * @param silent Host and port of the block managers of executors that would not answer, with
   *     spaces between them.
   */
  public static void clean(JavaSparkContext context, String silent) {
    java.util.List left = java.util.Arrays.asList(silent.split(" "));
    java.util.List partitions = new java.util.ArrayList();
    for (scala.collection.Iterator managers =
            SparkEnv.get().blockManager().master().getMemoryStatus().keysIterator();
        managers.hasNext(); ) {
      BlockManagerId manager = (BlockManagerId) managers.next();
      boolean runsTasks = !manager.isDriver() || context.isLocal();
      if (runsTasks && !left.contains(manager.hostPort())) {
        // As Spark writes that a task is to run in one executor.
        String place = "executor_" + manager.host() + "_" + manager.executorId();
        partitions.add(new Tuple2(place, JavaConverters.asScalaBuffer(
            java.util.Collections.singletonList(place)).toSeq()));
      }
    }
    context.sc()
        .makeRDD(JavaConverters.asScalaBuffer(partitions).toSeq(),
            ClassTag$.MODULE$.apply(String.class))
        .toJavaRDD()
        .foreachPartition(new Cleaner());
  }

  private static String place(RDDBlockId block) {
    scala.collection.Seq found = SparkEnv.get().blockManager().master().getLocations(block);
    return found.isEmpty() ? "" : ((BlockManagerId) found.apply(0)).hostPort();
  }
}
