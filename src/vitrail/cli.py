"""The command line: the list of commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cyclopts import App, CycloptsError

import vitrail
from vitrail.commands.bench import bench
from vitrail.commands.check import check
from vitrail.commands.convert import convert
from vitrail.commands.evaluate import evaluate
from vitrail.commands.export import export
from vitrail.commands.look import look
from vitrail.commands.models import models
from vitrail.commands.pack import pack
from vitrail.commands.plan import plan
from vitrail.commands.predict import predict
from vitrail.commands.pretrain import pretrain
from vitrail.commands.probe import probe
from vitrail.commands.push import push
from vitrail.commands.serve import serve
from vitrail.commands.stress import stress
from vitrail.commands.study import study
from vitrail.commands.train import train
from vitrail.errors import NO_MEMORY, VitrailError, is_short_of_memory

# Threads that spin while they wait take the cores from each other: on a busy machine of 2 cores, training took 86 s so,
# and 5 s with threads that sleep. It is read when torch is loaded, which is later.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

EPILOGUE = "Every command explains itself: vitrail COMMAND --help. A failure is one line; --debug shows the traceback."

app = App(
    name="vitrail",
    help="The Vision Transformer as complete software.\n\nExample: vitrail predict my-model/ photos/",
    help_format="plaintext",  # of the list of commands: markdown would take a quarter of its time
    help_epilogue=EPILOGUE,
    version=vitrail.__version__,
    version_flags=["--version"],
    help_flags=["--help", "-h"],
    suppress_keyboard_interrupt=False,  # it would end without a word; `main` says that it was stopped
)

for command in (
    train,
    pretrain,
    evaluate,
    probe,
    stress,
    study,
    predict,
    look,
    check,
    pack,
    convert,
    export,
    push,
    models,
    serve,
    bench,
    plan,
):
    app.command(command, help_format="markdown")


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. 0: done; 1: it failed, one line says why; 2: wrong usage."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        if debug:
            raise
        named = next((word for word in arguments if word in app and not word.startswith("-")), None)
        shows = "vitrail --help" if named is None else f"vitrail {named} --help"
        print(f"vitrail: {' '.join(str(error).split())} ({shows} shows how)", file=sys.stderr)
        return 2
    except VitrailError as error:
        if debug:
            raise
        print(f"vitrail: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vitrail: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has had enough
        return 0
    except Exception as error:
        if debug:
            raise
        print(f"vitrail: {_told(error)}", file=sys.stderr)
        return 1


def _told(error: Exception) -> str:
    """In one line what no code of ours foresaw: the machine's own refusals, and faults."""
    words = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        place = Path(os.fsdecode(error.filename))
        while place.name.startswith("."):  # of our own, beside what was asked for
            place = place.parent
        return f"{place} cannot be read or written ({error.strerror.lower()}): choose another place"
    if is_short_of_memory(error):
        return NO_MEMORY
    return f"unexpected {type(error).__name__}: {words} (--debug shows where)"
