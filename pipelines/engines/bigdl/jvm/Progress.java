package sentencepipelines;

import com.intel.analytics.bigdl.dllib.optim.Metrics;
import com.intel.analytics.bigdl.dllib.optim.Trigger;
import com.intel.analytics.bigdl.dllib.utils.Table;
import java.util.concurrent.ConcurrentLinkedQueue;
import scala.Tuple2;

/** Asked by dllib before each step, on the driver, whether to end; remembers what it is told. */
public class Progress implements Trigger {
  private final int steps;
  private final transient Metrics metrics;
  private final transient ConcurrentLinkedQueue lines = new ConcurrentLinkedQueue();
  private final transient long began = System.nanoTime();
  private volatile boolean stopped = false;
  private int made = -1;

  /**
   * @param steps To make.
   * @param metrics Of the optimiser.
   */
  public Progress(int steps, Metrics metrics) {
    this.steps = steps;
    this.metrics = metrics;
  }

  public boolean apply(Table state) {
    int done = ((Integer) state.apply("neval")).intValue() - 1;
    if (done > made) {
      made = done;
      double seconds = (System.nanoTime() - began) / 1e9;
      lines.add(done == 0
          ? "0 0 " + seconds + " 0"
          : done + " " + state.apply("Loss") + " " + seconds + " " + computing());
    }
    return stopped || done >= steps;
  }

  /** Seconds that the workers took for forward and backward passes, on average. */
  private double computing() {
    Tuple2 sumAndCount = metrics.get("computing time average");
    return ((Number) sumAndCount._1()).doubleValue() / ((Number) sumAndCount._2()).intValue() / 1e9;
  }

  /** Ends the run before its next step. */
  public void stop() {
    stopped = true;
  }

  /**
   * What has happened since the last call.
   *
   * @return A line each: steps made, loss, seconds since this was made, seconds of computing. The
   *     first line is of the beginning of the first step.
   */
  public String take() {
    StringBuilder taken = new StringBuilder();
    Object line;
    while ((line = lines.poll()) != null) {
      taken.append(line).append('\n');
    }
    return taken.toString();
  }
}
