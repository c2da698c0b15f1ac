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
   * @param rows Rows of the word table; and those of positions and segments, or nothing more.
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
    float[] places = Floats.array(weights[1]), segments = Floats.array(weights[2]);
    int firstPlace = Floats.first(weights[1]), firstSegment = Floats.first(weights[2]);
    for (int text = 0; text + 1 < starts.length; text++) {
      for (int token = starts[text]; token < starts[text + 1]; token++) {
        int row = token * hidden, place = firstPlace + (token - starts[text]) * hidden;
        for (int column = 0; column < hidden; column++) {
          out[row + column] += places[place + column] + segments[firstSegment + column];
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
    float[] places = Floats.array(gradients[1]), segments = Floats.array(gradients[2]);
    int firstPlace = Floats.first(gradients[1]), firstSegment = Floats.first(gradients[2]);
    for (int text = 0; text + 1 < starts.length; text++) {
      for (int token = starts[text]; token < starts[text + 1]; token++) {
        add(places, firstPlace + (token - starts[text]) * hidden, grad, from + token * hidden);
        add(segments, firstSegment, grad, from + token * hidden);
      }
    }
  }

  private void add(float[] sum, int to, float[] values, int from) {
    for (int column = 0; column < hidden; column++) {
      sum[to + column] += values[from + column];
    }
  }
}
