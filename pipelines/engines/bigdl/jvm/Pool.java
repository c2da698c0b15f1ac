package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;

/**
 * The mean of some of a text's token vectors, or one weighted by their places; zeros if there are
 * none.
 *
 * <p>From a table of vectors [tokens, hidden] and lengths [texts], to [texts, hidden].
 */
public class Pool extends AbstractModule {
  private final int hidden;
  private final String tokens;
  private final Tensor output = Floats.zeros(new int[] {0});
  private final Tensor back = Floats.zeros(new int[] {0});
  private final Tensor noLengths = Floats.zeros(new int[] {0});

  /**
   * @param hidden Width.
   * @param tokens `all`; `weighted`, all by their places from 1 on; `first`; `last`; or `inner`, all
   *     but the first and the last.
   */
  public Pool(int hidden, String tokens) {
    super(Floats.ACTIVITY, Floats.ACTIVITY, Floats.FLOAT, Floats.NUMERIC);
    this.hidden = hidden;
    this.tokens = tokens;
  }

  private int begin(int start, int next) {
    return tokens.equals("inner") ? start + 1 : tokens.equals("last") ? next - 1 : start;
  }

  private int end(int start, int next) {
    return tokens.equals("first") ? start + 1 : tokens.equals("inner") ? next - 1 : next;
  }

  /** The share of a text's vector at a place from 0 on. */
  private float share(int place, int count) {
    if (tokens.equals("weighted")) {
      return (place + 1) / (count * (count + 1f) / 2);
    }
    return 1f / Math.max(count, 1);
  }

  public Activity updateOutput(Activity input) {
    Tensor stream = Floats.member(input, 1);
    int[] starts = Floats.starts(Floats.member(input, 2));
    float[] in = Floats.array(stream);
    int from = Floats.first(stream), texts = starts.length - 1;
    float[] out = Floats.array(Floats.shaped(output, texts, hidden).zero());
    for (int text = 0; text < texts; text++) {
      int begin = begin(starts[text], starts[text + 1]), end = end(starts[text], starts[text + 1]);
      for (int token = begin; token < end; token++) {
        int row = from + token * hidden;
        float share = share(token - begin, end - begin);
        for (int column = 0; column < hidden; column++) {
          out[text * hidden + column] += share * in[row + column];
        }
      }
    }
    output_$eq(output);
    return output;
  }

  public Activity updateGradInput(Activity input, Activity gradOutput) {
    Tensor pull = (Tensor) gradOutput, lengths = Floats.member(input, 2);
    float[] grad = Floats.array(pull);
    int[] starts = Floats.starts(lengths);
    int from = Floats.first(pull), texts = starts.length - 1;
    float[] out = Floats.array(Floats.shaped(back, starts[texts], hidden).zero());
    for (int text = 0; text < texts; text++) {
      int begin = begin(starts[text], starts[text + 1]), end = end(starts[text], starts[text + 1]);
      for (int token = begin; token < end; token++) {
        float share = share(token - begin, end - begin);
        for (int column = 0; column < hidden; column++) {
          out[token * hidden + column] = grad[from + text * hidden + column] * share;
        }
      }
    }
    noLengths.resizeAs(lengths).zero();
    Activity result = Floats.pair(back, noLengths);
    gradInput_$eq(result);
    return result;
  }
}
