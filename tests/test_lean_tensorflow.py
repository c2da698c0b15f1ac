"""TensorFlow is imported without Keras, which then still works for who uses it."""

import subprocess
import sys

# Keras imports them if they are there, which takes as long again.
WITHOUT_OTHERS = """
import sys
sys.modules.update(dict.fromkeys(["matplotlib", "pandas", "scipy", "sklearn"]))
"""
HAS_NO_KERAS = """
from pipelines.lean_tensorflow import tensorflow as tf
assert not any(name.partition(".")[0] == "keras" for name in sys.modules)
"""
MARK = "imported\n"
SAYS_SO = f"""
sys.stderr.write({MARK!r})
"""
USES_KERAS = """
assert tf.keras.layers.Dense(2)(tf.ones([1, 3])).shape == (1, 2)
"""


def run_in_new_interpreter(program):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_OTHERS + program],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_tensorflow_is_imported_without_keras_and_in_silence_until_keras_is_used():
    ended = run_in_new_interpreter(HAS_NO_KERAS + SAYS_SO + USES_KERAS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.startswith(MARK)


def test_keras_that_is_there_already_stays():
    ended = run_in_new_interpreter(
        "import keras; from pipelines.lean_tensorflow import tensorflow as tf" + USES_KERAS
    )
    assert ended.returncode == 0, ended.stderr
