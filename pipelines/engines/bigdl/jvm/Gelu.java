package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import com.intel.analytics.bigdl.mkl.MKL;

/**
 * The exact GELU, x / 2 (1 + erf(x / sqrt 2)), by MKL's vector functions.
 *
 * <p>Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, arXiv:1606.08415.
 */
public class Gelu extends AbstractModule {
  /** Elements at a time, so that what is computed in between stays in the cache. */
  private static final int BLOCK = 4096;

  private static final float ROOT_HALF = (float) Math.sqrt(0.5);
  private static final float DENSITY = (float) (1 / Math.sqrt(2 * Math.PI));
  private final Tensor output = Floats.zeros(new int[] {0});
  private final Tensor back;
  private transient float[] share;
  private transient float[] scratch;

  /**
   * @param back Takes the gradients; see {@link Gradients}.
   */
  public Gelu(Tensor back) {
    super(Floats.ACTIVITY, Floats.ACTIVITY, Floats.FLOAT, Floats.NUMERIC);
    this.back = back;
  }

  public Activity updateOutput(Activity input) {
    Tensor values = (Tensor) input;
    int count = values.nElement(), from = Floats.first(values);
    float[] in = Floats.array(values);
    output.resizeAs(values);
    float[] out = Floats.array(output);
    share = Floats.room(share, count);
    scratch = Floats.room(scratch, BLOCK);
    for (int start = 0; start < count; start += BLOCK) {
      int size = Math.min(BLOCK, count - start);
      for (int place = 0; place < size; place++) {
        scratch[place] = in[from + start + place] * ROOT_HALF;
      }
      MKL.vsErf(size, scratch, 0, share, start);
      for (int place = start; place < start + size; place++) {
        share[place] = 0.5f * (1f + share[place]);
        out[place] = in[from + place] * share[place];
      }
    }
    output_$eq(output);
    return output;
  }

  public Activity updateGradInput(Activity input, Activity gradOutput) {
    Tensor values = (Tensor) input, pull = (Tensor) gradOutput;
    int count = values.nElement(), from = Floats.first(values), pullFrom = Floats.first(pull);
    float[] in = Floats.array(values), grad = Floats.array(pull);
    back.resizeAs(values);
    float[] out = Floats.array(back);
    for (int start = 0; start < count; start += BLOCK) {
      int size = Math.min(BLOCK, count - start);
      for (int place = 0; place < size; place++) {
        float value = in[from + start + place];
        scratch[place] = -0.5f * value * value;
      }
      MKL.vsExp(size, scratch, 0, scratch, 0);
      for (int place = 0; place < size; place++) {
        int here = start + place;
        float slope = share[here] + in[from + here] * DENSITY * scratch[place];
        out[here] = grad[pullFrom + here] * slope;
      }
    }
    gradInput_$eq(back);
    return back;
  }
}
