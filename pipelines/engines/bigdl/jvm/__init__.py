"""The Java part of BigDL's engine: the encoder's layers, AdamW, a worker's granules.

dllib lacks them. Spark's own query compiler compiles the sources beside this file in the driver's
JVM, and Spark sends the classes to the executors. No Java compiler and no build step is needed.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import EngineUnavailable

if TYPE_CHECKING:
    from pyspark import SparkContext

PACKAGE = "sentencepipelines"
SOURCES = Path(__file__).parent


def provide_classes(context: SparkContext) -> Any:
    """Compile the classes, once for each context; return their Java package. Runs on the driver.

    The driver needs dllib on its class path.

    Raises:
        EngineUnavailable: The driver's JVM accepts no classes at run time.
    """
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    name = f"sentence-pipelines-{digest}.jar"
    jvm: Any = context._jvm
    if not any(known.endswith(name) for known in _jars(context)):
        # Spark deletes the file with the context; loaded classes stay.
        path = Path(context._temp_dir) / name
        _write_jar(path, _compiled(context, sources))
        _add_to_driver(context, path)
        context._jsc.addJar(path.as_uri())
    return getattr(jvm, PACKAGE)


def _jars(context: SparkContext) -> list[str]:
    jars = context._jsc.sc().listJars()
    return [str(jars.apply(number)) for number in range(jars.size())]


def _compiled(context: SparkContext, sources: list[Path]) -> dict[str, bytes]:
    """Return the class files, by name.

    The compiler is Janino; source: its documentation, https://janino-compiler.github.io/janino.
    """
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    files = gateway.new_array(jvm.java.io.File, len(sources))
    for place, source in enumerate(sources):
        files[place] = jvm.java.io.File(str(source))
    janino = jvm.org.codehaus.janino
    compiler = janino.Compiler()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setIClassLoader(janino.ClassLoaderIClassLoader(loader))
    classes = jvm.java.util.HashMap()
    resources = jvm.org.codehaus.commons.compiler.util.resource
    compiler.setClassFileCreator(resources.MapResourceCreator(classes))
    compiler.compile(files)
    return {str(name): bytes(classes[name]) for name in classes}


def _write_jar(path: Path, classes: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, content in sorted(classes.items()):
            jar.writestr(name, content)


def _add_to_driver(context: SparkContext, path: Path) -> None:
    """Add a jar to the driver's class loader for the application; refuse other class loaders."""
    jvm: Any = context._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kind = str(loader.getClass().getName())
    if kind != "org.apache.spark.util.MutableURLClassLoader":
        raise EngineUnavailable(
            "training.engine",
            f"engine bigdl cannot add classes to the driver, whose class loader is {kind}",
            "Start the session with this command or with spark-submit",
        )
    loader.addURL(jvm.java.io.File(str(path)).toURI().toURL())
