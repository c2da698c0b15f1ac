package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import scala.Tuple2;

/**
 * Layer normalisation of a tensor [tokens, hidden], or of the sum of a table's two.
 *
 * <p>Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450. dllib's own is
 * built of general tensor operations, which take many times as long.
 */
public class ResidualNorm extends AbstractModule {
  private final int hidden;
  private final double epsilon;
  private final Tensor[] weights;
  private final Tensor[] gradients;
  private final Tensor output = Floats.zeros(new int[] {0});
  private final Tensor back;
  private final Tensor backToo;
  private transient float[] normal;
  private transient float[] inverse;

  /**
   * @param hidden Width.
   * @param epsilon Added to the variance.
   * @param back Takes the gradients of the first input; see {@link Gradients}.
   * @param backToo Those of the second.
   */
  public ResidualNorm(int hidden, double epsilon, Tensor back, Tensor backToo) {
    super(Floats.ACTIVITY, Floats.ACTIVITY, Floats.FLOAT, Floats.NUMERIC);
    this.back = back;
    this.backToo = backToo;
    this.hidden = hidden;
    this.epsilon = epsilon;
    this.weights = new Tensor[] {row(), row()};
    this.gradients = new Tensor[] {row(), row()};
  }

  private Tensor row() {
    return Floats.zeros(new int[] {hidden});
  }

  /** Scale and shift. */
  public Tuple2 parameters() {
    return new Tuple2(weights, gradients);
  }

  public Activity updateOutput(Activity input) {
    Tensor one = input.isTable() ? Floats.member(input, 1) : (Tensor) input;
    Tensor two = input.isTable() ? Floats.member(input, 2) : null;
    int tokens = one.nElement() / hidden;
    normal = Floats.room(normal, tokens * hidden);
    inverse = Floats.room(inverse, tokens);
    System.arraycopy(Floats.array(one), Floats.first(one), normal, 0, tokens * hidden);
    if (two != null) {
      add(Floats.array(two), Floats.first(two), tokens * hidden);
    }
    float[] out = Floats.array(Floats.shaped(output, tokens, hidden));
    float[] scale = Floats.array(weights[0]), shift = Floats.array(weights[1]);
    int firstScale = Floats.first(weights[0]), firstShift = Floats.first(weights[1]);
    for (int token = 0; token < tokens; token++) {
      int row = token * hidden;
      normaliseRow(row, token);
      for (int column = 0; column < hidden; column++) {
        out[row + column] =
            normal[row + column] * scale[firstScale + column] + shift[firstShift + column];
      }
    }
    output_$eq(output);
    return output;
  }

  private void add(float[] values, int first, int count) {
    for (int place = 0; place < count; place++) {
      normal[place] += values[first + place];
    }
  }

  private void normaliseRow(int row, int token) {
    double sum = 0, squares = 0;
    for (int column = 0; column < hidden; column++) {
      sum += normal[row + column];
    }
    double mean = sum / hidden;
    for (int column = 0; column < hidden; column++) {
      double distance = normal[row + column] - mean;
      squares += distance * distance;
    }
    float factor = (float) (1 / Math.sqrt(squares / hidden + epsilon)), middle = (float) mean;
    inverse[token] = factor;
    for (int column = 0; column < hidden; column++) {
      normal[row + column] = (normal[row + column] - middle) * factor;
    }
  }

  public Activity updateGradInput(Activity input, Activity gradOutput) {
    Tensor pull = (Tensor) gradOutput;
    float[] grad = Floats.array(pull), scale = Floats.array(weights[0]);
    int from = Floats.first(pull), firstScale = Floats.first(weights[0]);
    int tokens = pull.nElement() / hidden;
    float[] out = Floats.array(Floats.shaped(back, tokens, hidden));
    for (int token = 0; token < tokens; token++) {
      int row = token * hidden;
      double sum = 0, product = 0;
      for (int column = 0; column < hidden; column++) {
        float scaled = grad[from + row + column] * scale[firstScale + column];
        out[row + column] = scaled;
        sum += scaled;
        product += scaled * normal[row + column];
      }
      float mean = (float) (sum / hidden), slope = (float) (product / hidden);
      float factor = inverse[token];
      for (int column = 0; column < hidden; column++) {
        out[row + column] = factor * (out[row + column] - mean - normal[row + column] * slope);
      }
    }
    Activity result = back;
    if (input.isTable()) {
      // A copy: dllib adds the gradients of other readers into one of the two.
      float[] copy = Floats.array(Floats.shaped(backToo, tokens, hidden));
      System.arraycopy(out, 0, copy, 0, tokens * hidden);
      result = Floats.pair(back, backToo);
    }
    gradInput_$eq(result);
    return result;
  }

  public void accGradParameters(Activity input, Activity gradOutput) {
    Tensor pull = (Tensor) gradOutput;
    float[] grad = Floats.array(pull);
    float[] scale = Floats.array(gradients[0]), shift = Floats.array(gradients[1]);
    int from = Floats.first(pull);
    int firstScale = Floats.first(gradients[0]), firstShift = Floats.first(gradients[1]);
    for (int row = 0; row < pull.nElement(); row += hidden) {
      for (int column = 0; column < hidden; column++) {
        scale[firstScale + column] += grad[from + row + column] * normal[row + column];
        shift[firstShift + column] += grad[from + row + column];
      }
    }
  }
}
