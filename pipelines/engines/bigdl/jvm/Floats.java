package sentencepipelines;

import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity;
import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import com.intel.analytics.bigdl.dllib.tensor.Tensor$;
import com.intel.analytics.bigdl.dllib.tensor.TensorNumericMath.TensorNumeric;
import com.intel.analytics.bigdl.dllib.utils.Table;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/** dllib's fp32 tensors as the flat arrays that they are. */
public final class Floats {
  public static final TensorNumeric NUMERIC =
      com.intel.analytics.bigdl.dllib.tensor.TensorNumericMath$TensorNumeric$NumericFloat$.MODULE$;
  public static final ClassTag ACTIVITY = ClassTag$.MODULE$.apply(Activity.class);
  public static final ClassTag FLOAT = ClassTag$.MODULE$.Float();

  private Floats() {}

  /** A new tensor of zeros. */
  public static Tensor zeros(int[] shape) {
    return Tensor$.MODULE$.apply(shape, FLOAT, NUMERIC);
  }

  /** A tensor with a copy of some values. */
  public static Tensor of(float[] values) {
    Tensor tensor = zeros(new int[] {values.length});
    System.arraycopy(values, 0, array(tensor), first(tensor), values.length);
    return tensor;
  }

  /** The tensor with another shape; its memory is kept where it is large enough. */
  public static Tensor shaped(Tensor tensor, int rows, int columns) {
    return tensor.resize(rows, columns);
  }

  /** The array behind a contiguous tensor, which begins at {@link #first}. */
  public static float[] array(Tensor tensor) {
    if (!tensor.isContiguous()) {
      throw new IllegalArgumentException("a tensor is not contiguous: " + tensor.getClass());
    }
    return (float[]) tensor.storage().array();
  }

  /** Place of a tensor's first element in its array. */
  public static int first(Tensor tensor) {
    return tensor.storageOffset() - 1;
  }

  /** A member of a table, counted from 1 as dllib does. */
  public static Tensor member(Activity table, int number) {
    return (Tensor) ((Table) table).apply(Integer.valueOf(number));
  }

  /** A table of two tensors. */
  public static Table pair(Tensor one, Tensor two) {
    return new Table(new Object[] {one, two});
  }

  /** Little-endian int32 numbers. */
  public static int[] integers(byte[] bytes) {
    int[] values = new int[bytes.length / 4];
    ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(values);
    return values;
  }

  /** Little-endian fp32 numbers. */
  public static float[] floats(byte[] bytes) {
    float[] values = new float[bytes.length / 4];
    ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(values);
    return values;
  }

  /** An array of at least so many elements; the old one where it is large enough. */
  public static float[] room(float[] old, int size) {
    return old != null && old.length >= size ? old : new float[size];
  }

  /** Where each text begins among all tokens, and the end of the last. */
  public static int[] starts(Tensor lengths) {
    float[] values = array(lengths);
    int offset = first(lengths);
    int[] starts = new int[lengths.nElement() + 1];
    for (int text = 0; text < starts.length - 1; text++) {
      starts[text + 1] = starts[text] + (int) values[offset + text];
    }
    return starts;
  }
}
