package sentencepipelines;

import com.intel.analytics.bigdl.dllib.optim.OptimMethod;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import com.intel.analytics.bigdl.dllib.utils.Table;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import org.apache.spark.TaskContext;
import scala.Function1;
import scala.Tuple2;

/**
 * AdamW, of which each worker does its slice of the parameters; and who writes the state down.
 *
 * <p>Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
 * arXiv:1711.05101. dllib has none whose decay is decoupled and follows the learning rate.
 *
 * <p>The parameters are one vector, cut into as many slices as there are workers. A state file
 * holds a slice's weights, first and second moments. An optimiser that Spark makes anew, since its
 * executor was lost, has none of its own past: it refuses to go on.
 */
public class AdamW implements OptimMethod {
  private static final double BETA_1 = 0.9, BETA_2 = 0.999;
  private static final float EPSILON = 1e-8f;
  private static final float PULL_1 = (float) (1 - BETA_1), PULL_2 = (float) (1 - BETA_2);

  private final int firstStep;
  private final int workers;
  private final int size;
  private final float decay;
  private final int[] decayed;
  private final float[] rates;
  private final int[] kept;
  private final String begin;
  private final String folder;
  private Table state = new Table(new Object[0]);
  private transient float[] first;
  private transient float[] second;
  private transient int[] decayedHere;
  private transient int made;
  private transient RuntimeException failure;

  /**
   * @param firstStep Number of the first step, from 0.
   * @param workers Slices.
   * @param size Of the whole vector.
   * @param decay Weight decay.
   * @param decayed Begin and end of each range of the vector that is decayed, ascending; bytes of
   *     int32.
   * @param rates Learning rate of each step; bytes of float32.
   * @param kept Numbers of the steps before which the state is written; bytes of int32.
   * @param begin File of both moments of the whole vector to begin from; empty for zeros.
   * @param folder Where states are written, reachable from all executors.
   */
  public AdamW(int firstStep, int workers, int size, double decay, byte[] decayed, byte[] rates,
      byte[] kept, String begin, String folder) {
    this.firstStep = firstStep;
    this.workers = workers;
    this.size = size;
    this.decay = (float) decay;
    this.decayed = Floats.integers(decayed);
    this.rates = Floats.floats(rates);
    this.kept = Floats.integers(kept);
    this.begin = begin;
    this.folder = folder;
  }

  /** Updates this worker's slice of the weights. */
  public Tuple2 optimize(Function1 evaluate, Tensor weight) {
    if (failure != null) {
      // Spark tries again, and tells of the last failure alone.
      throw failure;
    }
    try {
      return updated(evaluate, weight);
    } catch (RuntimeException error) {
      failure = error;
      throw error;
    }
  }

  private Tuple2 updated(Function1 evaluate, Tensor weight) {
    Tuple2 lossAndGradient = (Tuple2) evaluate.apply(weight);
    Tensor gradient = (Tensor) lossAndGradient._2();
    int slice = TaskContext.getPartitionId();
    int asked = ((Integer) state.apply("neval")).intValue() - 1;
    if (first == null && asked == 0) {
      begin(start(slice), weight.nElement());
    }
    if (first == null || made != asked) {
      throw new IllegalArgumentException(
          "worker " + slice + " was lost: its part of the optimiser is at update " + made
              + " of this part, the run at " + asked);
    }
    if (TaskContext.get().attemptNumber() > 0) {
      throw new IllegalArgumentException(
          "worker " + slice + " has failed in this update, and may have added gradients twice");
    }
    int step = firstStep + made + 1;
    update(Floats.array(weight), Floats.first(weight), Floats.array(gradient),
        Floats.first(gradient), weight.nElement(), rates[made], step);
    made++;
    if (Arrays.binarySearch(kept, step) >= 0) {
      write(step, slice, weight);
    }
    return new Tuple2(weight, new float[] {((Number) lossAndGradient._1()).floatValue()});
  }

  private void begin(int from, int count) {
    float[] firstMoments = new float[count], secondMoments = new float[count];
    if (!begin.isEmpty()) {
      FlatFile.read(begin, from, firstMoments, 0, count);
      FlatFile.read(begin, (long) size + from, secondMoments, 0, count);
    }
    decayedHere = new int[decayed.length];
    for (int bound = 0; bound < decayed.length; bound++) {
      decayedHere[bound] = Math.min(Math.max(decayed[bound] - from, 0), count);
    }
    first = firstMoments;
    second = secondMoments;
  }

  /** Where a slice begins; dllib's first slices are one longer where it does not come out even. */
  private int start(int slice) {
    return slice * (size / workers) + Math.min(slice, size % workers);
  }

  /** Ranges that are decayed and those between them, in turn. */
  private void update(float[] weight, int to, float[] gradient, int from, int count, float rate,
      int number) {
    float keep = 1 - rate * decay;
    int done = 0;
    for (int range = 0; range < decayedHere.length; range += 2) {
      int low = decayedHere[range], high = decayedHere[range + 1];
      update(weight, to, gradient, from, done, low, 1f, rate, number);
      update(weight, to, gradient, from, low, high, keep, rate, number);
      done = high;
    }
    update(weight, to, gradient, from, done, count, 1f, rate, number);
  }

  // Without a condition inside, the JVM computes several elements at once.
  private void update(float[] weight, int to, float[] gradient, int from, int begin, int end,
      float keep, float rate, int number) {
    float step = (float) (rate / (1 - Math.pow(BETA_1, number)));
    float correction = (float) (1 / Math.sqrt(1 - Math.pow(BETA_2, number)));
    float[] means = first, squares = second;
    for (int place = begin; place < end; place++) {
      float pull = gradient[from + place];
      float mean = means[place] + PULL_1 * (pull - means[place]);
      float square = squares[place] + PULL_2 * (pull * pull - squares[place]);
      float root = (float) Math.sqrt(square);
      means[place] = mean;
      squares[place] = square;
      weight[to + place] =
          weight[to + place] * keep - step * mean / (root * correction + EPSILON);
    }
  }

  private void write(int step, int slice, Tensor weight) {
    Path path = Paths.get(folder, "state-" + step + "-" + slice + ".bin");
    Path aside = Paths.get(folder, "." + path.getFileName() + ".part");
    FlatFile.write(aside,
        new Object[][] {FlatFile.part(weight), FlatFile.part(first), FlatFile.part(second)});
    try {
      Files.move(aside, path, StandardCopyOption.REPLACE_EXISTING);
    } catch (IOException error) {
      throw new UncheckedIOException(path + " cannot be written", error);
    }
  }

  public double getLearningRate() {
    return rates[0];
  }

  public void clearHistory() {
    first = null;
    second = null;
    made = 0;
    failure = null;
  }

  public Table state() {
    return state;
  }

  public void state_$eq(Table value) {
    state = value;
  }

  public OptimMethod loadFromTable(Table config) {
    return this;
  }

  public OptimMethod clone() {
    return (OptimMethod) org.apache.commons.lang3.SerializationUtils.clone(this);
  }
}
