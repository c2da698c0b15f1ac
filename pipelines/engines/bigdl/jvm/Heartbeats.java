package sentencepipelines;

import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkEnv;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorMetricsUpdate;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.storage.BlockManagerId;

/** Remembers, on the driver, when each executor was heard of last. */
public class Heartbeats extends SparkListener {
  /** By executor, as System.nanoTime has it. */
  private final ConcurrentHashMap heard = new ConcurrentHashMap();

  /** The executor of each task that has begun and not ended. */
  private final ConcurrentHashMap running = new ConcurrentHashMap();

  public void onExecutorMetricsUpdate(SparkListenerExecutorMetricsUpdate update) {
    hear(update.execId());
  }

  public void onTaskStart(SparkListenerTaskStart start) {
    String executor = start.taskInfo().executorId();
    running.put(Long.valueOf(start.taskInfo().taskId()), executor);
    // The driver has started it: that the executor is there is not known by that.
    heard.putIfAbsent(executor, Long.valueOf(System.nanoTime()));
  }

  public void onTaskEnd(SparkListenerTaskEnd end) {
    running.remove(Long.valueOf(end.taskInfo().taskId()));
    hear(end.taskInfo().executorId());
  }

  private void hear(String executor) {
    heard.put(executor, Long.valueOf(System.nanoTime()));
  }

  /**
   * How long nothing was heard of executors that have tasks to run.
   *
   * @return Host and port of their block managers, and seconds, a line each.
   */
  public String silences() {
    StringBuilder lines = new StringBuilder();
    long now = System.nanoTime();
    for (scala.collection.Iterator managers =
            SparkEnv.get().blockManager().master().getMemoryStatus().keysIterator();
        managers.hasNext(); ) {
      BlockManagerId manager = (BlockManagerId) managers.next();
      Long last = (Long) heard.get(manager.executorId());
      if (last != null && running.containsValue(manager.executorId())) {
        double seconds = (now - last.longValue()) / 1e9;
        lines.append(manager.hostPort()).append(' ').append(seconds).append('\n');
      }
    }
    return lines.toString();
  }
}
