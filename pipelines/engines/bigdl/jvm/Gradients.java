package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;

/**
 * The memory for the gradients of one transformer layer's activations.
 *
 * <p>A layer's gradients are needed until the layer below has its own. So two of these, in turn, are
 * enough for any number of layers, while dllib gives every layer its own.
 */
public class Gradients {
  private final Tensor attention = empty();
  private final Tensor gelu = empty();
  private final Tensor[] norms = {empty(), empty(), empty(), empty()};
  private final Tensor[] products = {empty(), empty(), empty(), empty()};

  private static Tensor empty() {
    return Floats.zeros(new int[] {0});
  }

  /** That of the joined query, key and value. */
  public Tensor attention() {
    return attention;
  }

  /** That of the wide part. */
  public Tensor gelu() {
    return gelu;
  }

  /** That of an input of a layer's first or second norm. */
  public Tensor norm(int number, int input) {
    return norms[2 * number + input];
  }

  /** Gives a matrix product of dllib's its memory, by its number in the layer. */
  public void give(AbstractModule product, int number) {
    product.gradInput_$eq(products[number]);
  }
}
