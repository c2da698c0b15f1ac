package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import com.intel.analytics.bigdl.mkl.MKL;

/**
 * Scaled dot-product attention inside each text, by MKL's matrix products.
 *
 * <p>From a table of query, key and value [tokens, 3 hidden] and lengths [texts], to [tokens,
 * hidden]. Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, arXiv:1706.03762.
 *
 * <p>MKL's matrices are by columns. A matrix by rows is its own transpose there, so each product
 * below has its factors exchanged.
 */
public class Attention extends AbstractModule {
  private final int hidden;
  private final int heads;
  private final int width;
  private final float scale;
  private final Tensor output = Floats.zeros(new int[] {0});
  private final Tensor back;
  private final Tensor noLengths = Floats.zeros(new int[] {0});
  private transient float[] shares;
  private transient float[] pulls;

  /**
   * @param hidden Width.
   * @param heads Divides it.
   * @param back Takes the gradients; see {@link Gradients}.
   */
  public Attention(int hidden, int heads, Tensor back) {
    super(Floats.ACTIVITY, Floats.ACTIVITY, Floats.FLOAT, Floats.NUMERIC);
    this.back = back;
    this.hidden = hidden;
    this.heads = heads;
    this.width = hidden / heads;
    this.scale = (float) (1 / Math.sqrt(width));
  }

  public Activity updateOutput(Activity input) {
    Tensor joined = Floats.member(input, 1);
    float[] in = Floats.array(joined);
    int[] starts = Floats.starts(Floats.member(input, 2));
    float[] out = Floats.array(Floats.shaped(output, joined.size(1), hidden));
    shares = Floats.room(shares, squares(starts));
    int square = 0;
    for (int text = 0; text + 1 < starts.length; text++) {
      int length = starts[text + 1] - starts[text];
      int from = Floats.first(joined) + starts[text] * 3 * hidden, to = starts[text] * hidden;
      attend(in, from, out, to, square, length);
      square += heads * length * length;
    }
    output_$eq(output);
    return output;
  }

  private int squares(int[] starts) {
    long sum = 0;
    for (int text = 0; text + 1 < starts.length; text++) {
      long length = starts[text + 1] - starts[text];
      sum += heads * length * length;
    }
    return Math.toIntExact(sum);
  }

  /** One text. */
  private void attend(float[] in, int from, float[] out, int to, int square, int length) {
    int row = 3 * hidden, size = length * length;
    for (int head = 0; head < heads; head++) {
      int query = from + head * width, key = query + hidden;
      MKL.vsgemm('t', 'n', length, length, width, scale, in, key, row, in, query, row, 0f,
          shares, square + head * size, length);
    }
    softmax(square, heads * length, length);
    for (int head = 0; head < heads; head++) {
      int value = from + head * width + 2 * hidden;
      MKL.vsgemm('n', 'n', width, length, length, 1f, in, value, row,
          shares, square + head * size, length, 0f, out, to + head * width, hidden);
    }
  }

  private void softmax(int first, int rows, int length) {
    for (int row = first; row < first + rows * length; row += length) {
      float most = Float.NEGATIVE_INFINITY;
      for (int column = row; column < row + length; column++) {
        most = Math.max(most, shares[column]);
      }
      for (int column = row; column < row + length; column++) {
        shares[column] -= most;
      }
    }
    MKL.vsExp(rows * length, shares, first, shares, first);
    for (int row = first; row < first + rows * length; row += length) {
      float sum = 0;
      for (int column = row; column < row + length; column++) {
        sum += shares[column];
      }
      float factor = 1 / sum;
      for (int column = row; column < row + length; column++) {
        shares[column] *= factor;
      }
    }
  }

  public Activity updateGradInput(Activity input, Activity gradOutput) {
    Tensor joined = Floats.member(input, 1), pull = (Tensor) gradOutput;
    Tensor lengths = Floats.member(input, 2);
    float[] in = Floats.array(joined), grad = Floats.array(pull);
    int[] starts = Floats.starts(lengths);
    float[] out = Floats.array(Floats.shaped(back, joined.size(1), 3 * hidden));
    int square = 0;
    for (int text = 0; text + 1 < starts.length; text++) {
      int length = starts[text + 1] - starts[text];
      int from = Floats.first(joined) + starts[text] * 3 * hidden;
      int pullFrom = Floats.first(pull) + starts[text] * hidden;
      for (int head = 0; head < heads; head++) {
        int place = head * width;
        attendBack(in, from + place, grad, pullFrom + place, out,
            starts[text] * 3 * hidden + place, square, length);
        square += length * length;
      }
    }
    noLengths.resizeAs(lengths).zero();
    Activity result = Floats.pair(back, noLengths);
    gradInput_$eq(result);
    return result;
  }

  /** One head of one text. */
  private void attendBack(float[] in, int query, float[] grad, int pull, float[] out, int to,
      int square, int length) {
    int row = 3 * hidden, key = query + hidden, value = key + hidden;
    pulls = Floats.room(pulls, length * length);
    MKL.vsgemm('n', 't', width, length, length, 1f, grad, pull, hidden, shares, square, length,
        0f, out, to + 2 * hidden, row);
    MKL.vsgemm('t', 'n', length, length, width, 1f, in, value, row, grad, pull, hidden,
        0f, pulls, 0, length);
    for (int line = 0; line < length; line++) {
      int here = line * length, there = square + here;
      float sum = 0;
      for (int column = 0; column < length; column++) {
        sum += pulls[here + column] * shares[there + column];
      }
      for (int column = 0; column < length; column++) {
        pulls[here + column] = shares[there + column] * (pulls[here + column] - sum);
      }
    }
    MKL.vsgemm('n', 'n', width, length, length, scale, in, key, row, pulls, 0, length,
        0f, out, to, row);
    MKL.vsgemm('n', 't', width, length, length, scale, in, query, row, pulls, 0, length,
        0f, out, to + hidden, row);
  }
}
