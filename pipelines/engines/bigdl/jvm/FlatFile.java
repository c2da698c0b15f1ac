package sentencepipelines;

import com.intel.analytics.bigdl.dllib.tensor.Tensor;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;

/** Files of nothing but little-endian fp32 numbers, which numpy reads and writes as they are. */
public final class FlatFile {
  private static final int BLOCK = 1 << 18;

  private FlatFile() {}

  /** Fills a contiguous tensor with the numbers from the file's beginning on. */
  public static void load(String path, Tensor tensor) {
    read(path, 0, Floats.array(tensor), Floats.first(tensor), tensor.nElement());
  }

  /**
   * Reads some numbers of a file.
   *
   * @param path The file.
   * @param start How many numbers come before.
   * @param values Where they go.
   * @param first Place of the first.
   * @param size How many.
   */
  public static void read(String path, long start, float[] values, int first, int size) {
    ByteBuffer buffer = ByteBuffer.allocate(4 * BLOCK).order(ByteOrder.LITTLE_ENDIAN);
    try {
      FileChannel file = FileChannel.open(Paths.get(path), StandardOpenOption.READ);
      try {
        file.position(4 * start);
        for (int done = 0; done < size; done += BLOCK) {
          int count = Math.min(BLOCK, size - done);
          fill(file, buffer, 4 * count);
          buffer.asFloatBuffer().get(values, first + done, count);
        }
      } finally {
        file.close();
      }
    } catch (IOException error) {
      throw new UncheckedIOException(path + " cannot be read", error);
    }
  }

  private static void fill(FileChannel file, ByteBuffer buffer, int bytes) throws IOException {
    buffer.clear().limit(bytes);
    while (buffer.hasRemaining()) {
      if (file.read(buffer) < 0) {
        throw new IOException("it is too short");
      }
    }
    buffer.flip();
  }

  /** Writes arrays, one behind the other: each as the array, the first place, how many. */
  public static void write(Path path, Object[][] parts) {
    try {
      FileChannel file = FileChannel.open(path, StandardOpenOption.CREATE,
          StandardOpenOption.TRUNCATE_EXISTING, StandardOpenOption.WRITE);
      try {
        for (int part = 0; part < parts.length; part++) {
          append(file, (float[]) parts[part][0], ((Integer) parts[part][1]).intValue(),
              ((Integer) parts[part][2]).intValue());
        }
      } finally {
        file.close();
      }
    } catch (IOException error) {
      throw new UncheckedIOException(path + " cannot be written", error);
    }
  }

  private static void append(FileChannel file, float[] values, int first, int size)
      throws IOException {
    ByteBuffer buffer = ByteBuffer.allocate(4 * BLOCK).order(ByteOrder.LITTLE_ENDIAN);
    for (int done = 0; done < size; done += BLOCK) {
      int count = Math.min(BLOCK, size - done);
      buffer.clear().limit(4 * count);
      buffer.asFloatBuffer().put(values, first + done, count);
      while (buffer.hasRemaining()) {
        file.write(buffer);
      }
    }
  }

  /** Writes a contiguous tensor. */
  public static void save(String path, Tensor tensor) {
    write(Paths.get(path), new Object[][] {part(tensor)});
  }

  /** A tensor as {@link #write} takes it. */
  public static Object[] part(Tensor tensor) {
    return new Object[] {
      Floats.array(tensor), Integer.valueOf(Floats.first(tensor)), Integer.valueOf(tensor.nElement())
    };
  }

  /** An array as {@link #write} takes it. */
  public static Object[] part(float[] values) {
    return new Object[] {values, Integer.valueOf(0), Integer.valueOf(values.length)};
  }
}
