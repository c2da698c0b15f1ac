package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.AbstractModule;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import scala.Tuple2;

/**
 * Rows of a word table, with those of the place in the text and of the first segment added where
 * there are such tables.
 *
 * <p>From a table of token ids [tokens], from 0, and lengths [texts], to [tokens, hidden].
 */
public class TokenVectors extends AbstractModule {
  private final int hidden;
  private final Tensor[] weights;
  private final Tensor[] gradients;
  private final Tensor output = Floats.zeros(new int[] {0});
  private final Tensor none = Floats.zeros(new int[] {0});
  private final Tensor noLengths = Floats.zeros(new int[] {0});

  /**
   * @param rows Rows of the word table; then those of positions and of segments, if there are any.
   * @param hidden Width.
   */
  public TokenVectors(int[] rows, int hidden) {
    super(Floats.ACTIVITY, Floats.ACTIVITY, Floats.FLOAT, Floats.NUMERIC);
    this.hidden = hidden;
    this.weights = new Tensor[rows.length];
    this.gradients = new Tensor[rows.length];
    for (int table = 0; table < rows.length; table++) {
      weights[table] = Floats.zeros(new int[] {rows[table], hidden});
      gradients[table] = Floats.zeros(new int[] {rows[table], hidden});
    }
  }

  public Tuple2 parameters() {
    return new Tuple2(weights, gradients);
  }

  public Activity updateOutput(Activity input) {
    Tensor ids = Floats.member(input, 1);
    float[] id = Floats.array(ids), words = Floats.array(weights[0]);
    int firstId = Floats.first(ids), firstWord = Floats.first(weights[0]);
    float[] out = Floats.array(Floats.shaped(output, ids.nElement(), hidden));
    for (int token = 0; token < ids.nElement(); token++) {
      int row = firstWord + (int) id[firstId + token] * hidden;
      System.arraycopy(words, row, out, token * hidden, hidden);
    }
    if (weights.length > 1) {
      addPlaces(out, Floats.starts(Floats.member(input, 2)));
    }
    output_$eq(output);
    return output;
  }

  private void addPlaces(float[] out, int[] starts) {
    for (int text = 0; text + 1 < starts.length; text++) {
      for (int token = starts[text]; token < starts[text + 1]; token++) {
        int row = token * hidden, place = (token - starts[text]) * hidden;
        add(out, row, Floats.array(weights[1]), Floats.first(weights[1]) + place);
        if (weights.length > 2) {
          add(out, row, Floats.array(weights[2]), Floats.first(weights[2]));
        }
      }
    }
  }

  /** Ids and lengths have no gradient: zeros. */
  public Activity updateGradInput(Activity input, Activity gradOutput) {
    none.resizeAs(Floats.member(input, 1)).zero();
    noLengths.resizeAs(Floats.member(input, 2)).zero();
    Activity table = Floats.pair(none, noLengths);
    gradInput_$eq(table);
    return table;
  }

  public void accGradParameters(Activity input, Activity gradOutput) {
    Tensor ids = Floats.member(input, 1), pull = (Tensor) gradOutput;
    float[] id = Floats.array(ids), grad = Floats.array(pull), words = Floats.array(gradients[0]);
    int firstId = Floats.first(ids), from = Floats.first(pull);
    int firstWord = Floats.first(gradients[0]);
    for (int token = 0; token < ids.nElement(); token++) {
      add(words, firstWord + (int) id[firstId + token] * hidden, grad, from + token * hidden);
    }
    if (weights.length == 1) {
      return;
    }
    int[] starts = Floats.starts(Floats.member(input, 2));
    for (int text = 0; text + 1 < starts.length; text++) {
      for (int token = starts[text]; token < starts[text + 1]; token++) {
        int row = from + token * hidden, place = (token - starts[text]) * hidden;
        add(Floats.array(gradients[1]), Floats.first(gradients[1]) + place, grad, row);
        if (weights.length > 2) {
          add(Floats.array(gradients[2]), Floats.first(gradients[2]), grad, row);
        }
      }
    }
  }

  private void add(float[] sum, int to, float[] values, int from) {
    for (int column = 0; column < hidden; column++) {
      sum[to + column] += values[from + column];
    }
  }
}
