package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractCriterion;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;

/** The loss that {@link GranuleLosses} has computed, whatever it is compared with. */
public class MeanLoss extends AbstractCriterion {
  public MeanLoss() {
    super(Floats.ACTIVITY, Floats.ACTIVITY, Floats.FLOAT, Floats.NUMERIC);
  }

  public Object updateOutput(Activity input, Activity target) {
    Tensor loss = (Tensor) input;
    Float value = Float.valueOf(Floats.array(loss)[Floats.first(loss)]);
    output_$eq(value);
    return value;
  }

  public Activity updateGradInput(Activity input, Activity target) {
    gradInput_$eq(input);
    return input;
  }
}
