package sentencepipelines;

import com.intel.analytics.bigdl.dllib.feature.dataset.MiniBatch;
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import com.intel.analytics.bigdl.dllib.tensor.TensorNumericMath.TensorNumeric;
import com.intel.analytics.bigdl.dllib.utils.Table;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import scala.collection.Seq;

/**
 * A worker's granules of one step, which dllib shares between the worker's threads.
 *
 * <p>Texts stand one behind the other without padding, granule by granule and in a granule side by
 * side. Each granule has as many texts, and as many targets, as any other.
 */
public class Granules implements MiniBatch {
  private final int step;
  private final int count;
  private final float[] tokenIds;
  private final float[] lengths;
  private final float[] targets;
  private final int[][] excluded;

  private Granules(
      int step, int count, float[] tokenIds, float[] lengths, float[] targets, int[][] excluded) {
    this.step = step;
    this.count = count;
    this.tokenIds = tokenIds;
    this.lengths = lengths;
    this.targets = targets;
    this.excluded = excluded;
  }

  /**
   * Reads what `pipelines.engines.bigdl.feeding.packed` wrote.
   *
   * @param bytes int32 numbers: of the step, of granules, tokens, texts and targets; then int32 ids
   *     and lengths, how many places each granule excludes, and these, granule by granule; and
   *     float32 targets; little-endian.
   */
  public static Granules read(byte[] bytes) {
    ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    IntBuffer head = buffer.asIntBuffer();
    int step = head.get(), count = head.get();
    float[] tokenIds = new float[head.get()];
    float[] lengths = new float[head.get()];
    float[] targets = new float[head.get()];
    for (int place = 0; place < tokenIds.length; place++) {
      tokenIds[place] = head.get();
    }
    for (int place = 0; place < lengths.length; place++) {
      lengths[place] = head.get();
    }
    int[][] excluded = new int[count][];
    for (int granule = 0; granule < count; granule++) {
      excluded[granule] = new int[head.get()];
    }
    for (int[] places : excluded) {
      head.get(places);
    }
    buffer.position(4 * head.position());
    FloatBuffer values = buffer.asFloatBuffer();
    values.get(targets);
    return new Granules(step, count, tokenIds, lengths, targets, excluded);
  }

  public int size() {
    return count;
  }

  /** Some of the granules; they are counted from 1. */
  public MiniBatch slice(int from, int size) {
    if (from == 1 && size == count) {
      return this;
    }
    int texts = lengths.length / count, places = targets.length / count;
    int firstText = (from - 1) * texts, endText = firstText + size * texts;
    int firstToken = 0, tokens = 0;
    for (int text = 0; text < endText; text++) {
      if (text < firstText) {
        firstToken += (int) lengths[text];
      } else {
        tokens += (int) lengths[text];
      }
    }
    return new Granules(
        step,
        size,
        java.util.Arrays.copyOfRange(tokenIds, firstToken, firstToken + tokens),
        java.util.Arrays.copyOfRange(lengths, firstText, endText),
        java.util.Arrays.copyOfRange(targets, (from - 1) * places, (from - 1 + size) * places),
        (int[][]) java.util.Arrays.copyOfRange(excluded, from - 1, from - 1 + size));
  }

  /**
   * A table of token ids, which count from 0, the length of each text, targets, the step, and for
   * each granule the places among what it compares that its loss does not see.
   */
  public Activity getInput() {
    return new Table(new Object[] {
      Floats.of(tokenIds), Floats.of(lengths), Floats.of(targets), Integer.valueOf(step), excluded
    });
  }

  public Activity getTarget() {
    return Floats.of(targets);
  }

  public Tensor data() {
    return Floats.member(getInput(), 1);
  }

  public Tensor labels() {
    return (Tensor) getTarget();
  }

  public MiniBatch set(Seq samples, TensorNumeric numeric) {
    throw new UnsupportedOperationException("granules are made whole, not of samples");
  }
}
