package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractCriterion;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import com.intel.analytics.bigdl.dllib.utils.Table;
import scala.Tuple2;

/**
 * The mean loss of some granules, of which one at a time is in memory.
 *
 * <p>A granule's loss does not depend on the others. So its backward pass follows its forward pass
 * at once, which adds up the gradients of the weights; nothing is left to do for the backward pass
 * of this module. Its own criterion is {@link MeanLoss}.
 */
public class GranuleLosses extends AbstractModule {
  private final AbstractModule graph;
  private final AbstractCriterion criterion;
  private final int texts;
  private final Tensor output = Floats.zeros(new int[] {1});
  private transient int made = 0;
  private transient int first = 0;
  private transient RuntimeException failure;

  /**
   * @param graph From a table of token ids and lengths of one granule.
   * @param criterion Compares what the graph gives with the granule's targets.
   * @param texts Of a granule.
   */
  public GranuleLosses(AbstractModule graph, AbstractCriterion criterion, int texts) {
    super(Floats.ACTIVITY, Floats.ACTIVITY, Floats.FLOAT, Floats.NUMERIC);
    this.graph = graph;
    this.criterion = criterion;
    this.texts = texts;
  }

  public Tuple2 parameters() {
    return graph.parameters();
  }

  /**
   * From a table of token ids, lengths and targets of all granules, the number of the step, and what
   * each granule excludes, to a tensor of one number.
   *
   * <p>Spark makes a task again that has failed, with the next granules and half a gradient: that
   * ends in the first failure once more.
   */
  public Activity updateOutput(Activity input) {
    if (failure != null) {
      throw failure;
    }
    try {
      int step = ((Integer) ((Table) input).apply(Integer.valueOf(4))).intValue();
      check(step);
      float loss = (float) meanLoss(input);
      made++;
      Floats.array(output)[Floats.first(output)] = loss;
      output_$eq(output);
      return output;
    } catch (RuntimeException error) {
      failure = error;
      throw error;
    }
  }

  private void check(int step) {
    if (made == 0) {
      first = step;
    }
    if (step != first + made) {
      throw new IllegalArgumentException(
          "a worker was given step " + step + " after " + made + " steps from " + first + " on");
    }
  }

  private double meanLoss(Activity input) {
    Tensor ids = Floats.member(input, 1), lengths = Floats.member(input, 2);
    Tensor targets = Floats.member(input, 3);
    int[][] excluded = (int[][]) ((Table) input).apply(Integer.valueOf(5));
    int[] starts = Floats.starts(lengths);
    int granules = lengths.nElement() / texts, each = targets.nElement() / granules;
    double sum = 0;
    for (int granule = 0; granule < granules; granule++) {
      int first = starts[granule * texts], end = starts[(granule + 1) * texts];
      Activity own = Floats.pair(
          (Tensor) ids.narrow(1, first + 1, end - first),
          (Tensor) lengths.narrow(1, granule * texts + 1, texts));
      Activity target = (Tensor) targets.narrow(1, granule * each + 1, each);
      Activity compared = graph.forward(own);
      exclude((Tensor) compared, excluded[granule]);
      sum += ((Number) criterion.forward(compared, target)).doubleValue();
      Tensor pull = (Tensor) criterion.backward(compared, target);
      graph.backward(own, (Tensor) pull.div(Float.valueOf(granules)));
    }
    return sum / granules;
  }

  /** Similarities so small that their exponentials are 0, and with these the gradients. */
  private static void exclude(Tensor compared, int[] places) {
    if (places.length == 0) {
      return;
    }
    float[] values = Floats.array(compared);
    int first = Floats.first(compared);
    for (int place : places) {
      values[first + place] = -Float.MAX_VALUE;
    }
  }

  /** Nothing: the weights have their gradients, and the input has none. */
  public Activity updateGradInput(Activity input, Activity gradOutput) {
    gradInput_$eq(input);
    return input;
  }
}
