package sentencepipelines;

import com.intel.analytics.bigdl.dllib.models.utils.CachedModels$;
import java.util.Iterator;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.function.VoidFunction;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManager;

/** Removes dllib's blocks of weights and gradients, and its copies of models, from an executor. */
public class Cleaner implements VoidFunction {
  /** What Spark puts before the names of blocks of a kind that only dllib makes. */
  private static final String KIND = "test_";

  private static final long DEADLINE = 10000;

  public void call(Object partition) throws InterruptedException {
    // dllib's own threads, which are no tasks of Spark's, read blocks and never unlock them. Only a
    // thread of the same kind can do so.
    Thread cleaning = new Thread(new Cleaning(SparkEnv.get().blockManager()));
    cleaning.start();
    cleaning.join(DEADLINE);
    CachedModels$.MODULE$.deleteAll("", Floats.FLOAT, Floats.NUMERIC);
  }

  /** Removes the blocks. */
  private static class Cleaning implements Runnable {
    private final BlockManager blocks;

    Cleaning(BlockManager blocks) {
      this.blocks = blocks;
    }

    public void run() {
      scala.collection.Iterator found = blocks.getMatchingBlockIds(new Matching()).iterator();
      while (found.hasNext()) {
        BlockId block = (BlockId) found.next();
        try {
          while (blocks.blockInfoManager().lockForWriting(block, false).isEmpty()) {
            blocks.blockInfoManager().unlock(block, scala.Option.empty());
          }
          blocks.blockInfoManager().unlock(block, scala.Option.empty());
          blocks.removeBlock(block, true);
        } catch (AssertionError error) {
          // A task of Spark's reads it at this moment, and will unlock it: it is not left over.
          continue;
        }
      }
    }
  }

  /** Whether a block is dllib's. */
  private static class Matching extends scala.runtime.AbstractFunction1 {
    public Object apply(Object block) {
      return Boolean.valueOf(((BlockId) block).name().startsWith(KIND));
    }
  }
}
