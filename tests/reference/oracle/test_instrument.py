"""Rewritten code does what the code does, with every hook at work: over the language, and over other people's code."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import random
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import pytest

from kvlatch.reference.oracle.instrument import Instrumented, _pairs, is_rewritten, publish, rewritten
from kvlatch.reference.oracle.interleave import Cast
from kvlatch.reference.oracle.primitives import Primitive, installed
from kvlatch.reference.oracle.sharing import Sharing

STDLIB: Final = Path(sysconfig.get_paths()["stdlib"])
LANGUAGE: Final = Path(__file__).with_name("language.txt")
CASES: Final = re.findall(r"^def (case_\w+)", LANGUAGE.read_text("utf-8"), re.MULTILINE)
ALL: Final = 1_000_000_000


class Rewriting(importlib.machinery.SourceFileLoader):
    """Loads a module with its functions rewritten."""

    def get_code(self, fullname: str) -> CodeType:
        """Of a file that is there."""
        return rewritten(Path(self.path).read_text("utf-8"), self.path, Path(self.path).name)


def load(file: Path, name: str, *, anew: bool) -> ModuleType:
    """A module, as it is or rewritten; it is known by its name, since dataclasses ask for that."""
    loader = (Rewriting if anew else importlib.machinery.SourceFileLoader)(name, str(file))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def on_stage(act: Callable[[], Any]) -> Any:
    """What something returns on a thread of a cast, where all hooks are at work; its exception, if it raises."""
    sharing, cast = Sharing(), Cast(120.0)
    sharing.recording = True
    try:
        with installed():
            Primitive.touch = sharing.touch
            publish(sharing.hooks())
            moved = cast.go("scheduler", act, ALL)
            while moved.at is not None:  # it has paused because it goes on and on
                moved = cast.go("scheduler", None, ALL)
    finally:
        cast.close()
    if moved.error is not None:
        raise moved.error
    return moved.value


def plain(text: object) -> str:
    """Without addresses in memory, and without the name under which a module was loaded."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(text)).replace("_anew", "").replace("_plain", "")


# --- The language ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twice() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The module of cases, as it is and rewritten."""
    publish(Sharing().hooks())
    modules = load(LANGUAGE, "language_plain", anew=False), load(LANGUAGE, "language_anew", anew=True)
    yield modules
    for module in modules:
        sys.modules.pop(module.__name__)


@pytest.mark.parametrize("name", CASES)
def test_the_language(twice: tuple[ModuleType, ModuleType], name: str) -> None:
    """The same result, in the same order of evaluation."""
    as_it_is, anew = twice
    case = anew.CASES[name]
    assert is_rewritten(case.__code__)
    expected = plain(as_it_is.noted(as_it_is.CASES[name]))
    assert plain(on_stage(lambda: anew.noted(case))) == expected
    publish(Sharing().hooks())
    assert plain(anew.noted(case)) == expected


NEW: Final = """
from typing import TypeVar

type Alias[T] = dict[str, list[T]] | Outer.Inner[T]

class Outer:
    class Inner[T]:
        items: list[T]

        def __init__(self, *items: T) -> None:
            self.items = list(items)

        def first[U: (int, str)](self, default: U) -> T | U:
            type Local = list[U]
            return self.items[0] if self.items else default

def last[T](things: list[T], *, seen: dict[T, int]) -> T:
    seen[things[-1]] = seen.get(things[-1], 0)
    seen[things[-1]] += 1
    return things[-1]

def case():
    seen = {}
    table = {"a": {"b": 1}}
    inner = Outer.Inner("x")
    return (last([1, 2], seen=seen), seen, inner.first(1), Outer.Inner().first("d"), Alias.__value__,
            f"{table["a"]["b"]} {"nested " + f"{len(table["a"])}"}", [x for x in inner.items if (y := x)], y)
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has type parameters")
def test_type_parameters(tmp_path: Path) -> None:
    """Aliases, generic classes and functions, quotes in f-strings."""
    (tmp_path / "new.py").write_text(NEW, encoding="utf-8")
    as_it_is = load(tmp_path / "new.py", "new_plain", anew=False)
    anew = load(tmp_path / "new.py", "new_anew", anew=True)
    assert plain(on_stage(anew.case)) == plain(as_it_is.case())


# --- Other people's code --------------------------------------------------------------------------------------------


def _decimal(module: ModuleType) -> Any:
    with module.localcontext() as context:
        context.prec = 30
        numbers = [module.Decimal(text) for text in ("1.1", "-2.25", "1e10", "0.333", "7")]
        pairs = [(str(a / b), str((a * b).copy_abs().sqrt()), divmod(a, b)) for a in numbers for b in numbers]
        return pairs, [str(abs(number).ln() + number.exp()) for number in numbers if number < 100]


def _difflib(module: ModuleType) -> Any:
    one, other = "the cat sat\non the mat\n".splitlines(True), "the dog sat\non a mat\n".splitlines(True)
    return (
        list(module.ndiff(one, other)),
        list(module.unified_diff(one, other)),
        module.get_close_matches("ape", ["apple"]),
    )


def _json(module: ModuleType) -> Any:
    text = '{"a": [1, 2.5, "x\\u00e9", null, true, {"b": []}], "c": "\\ud83d\\ude00"}'
    return module.JSONDecoder().decode(text)


def _ast(module: ModuleType) -> Any:
    source = LANGUAGE.read_text("utf-8")
    return module.unparse(module.parse(source))


def _argparse(module: ModuleType) -> Any:
    parser = module.ArgumentParser(prog="p", description="d " * 40)
    parser.add_argument("--n", type=int, default=3, help="a number, %(default)s")
    parser.add_subparsers(dest="what").add_parser("go").add_argument("x", nargs="*")
    return parser.format_help(), vars(parser.parse_args(["--n", "4", "go", "a", "b"]))


def _textwrap(module: ModuleType) -> Any:
    return (
        module.wrap(LANGUAGE.read_text("utf-8")[:500], 20),
        module.dedent("  a\n   b\n"),
        module.shorten("a b c d", 5),
    )


def _statistics(module: ModuleType) -> Any:
    numbers = [random.Random(0).random() for _ in range(50)]  # noqa: S311
    return module.mean(numbers), module.quantiles(numbers), module.stdev(numbers), module.NormalDist(0, 1).cdf(0.3)


def _fractions(module: ModuleType) -> Any:
    return [str(module.Fraction(a, b) + module.Fraction("1.5") ** a) for a in range(5) for b in (2, 3, -7)]


def _graphlib(module: ModuleType) -> Any:
    return list(module.TopologicalSorter({n: [n // 2, n // 3] for n in range(2, 40)}).static_order())


def _configparser(module: ModuleType) -> Any:
    parser = module.ConfigParser()
    parser.read_string("[a]\nx = 1\ny = %(x)s2\n[b]\nz: q\n  more\n")
    return {name: dict(section) for name, section in parser.items()}, parser.getint("a", "y")


def _heapq(module: ModuleType) -> Any:
    numbers = [7, 3, 9, 1, 4]
    module.heapify(numbers)
    return numbers, list(module.merge([1, 4], [2, 3], key=lambda x: x)), module.nsmallest(2, numbers, key=lambda x: -x)


def _pprint(module: ModuleType) -> Any:
    return module.pformat({"a": list(range(40)), "b": {"c": ("x" * 50, "y" * 50)}}, width=60, compact=True)


def _shlex(module: ModuleType) -> Any:
    return module.split('a \'b c\' "d\\"e" # f', comments=True), module.join(["a b", "c"])


def _html(module: ModuleType) -> Any:
    seen: list[Any] = []
    kinds = ("starttag", "endtag", "data", "comment", "decl")
    handlers = {f"handle_{kind}": lambda _, *args, kind=kind: seen.append((kind, *args)) for kind in kinds}
    type("Parser", (module.HTMLParser,), handlers)().feed('<!doctype x><a href="b">c<!-- d --><br/>&amp;</a>')
    return seen


def _url(module: ModuleType) -> Any:
    return (
        module.urlsplit("http://a.b:80/c;d?e=f&g=%20#h"),
        module.parse_qs("a=1&a=2&b="),
        module.urljoin("http://a/b/c", "../d"),
    )


def _datetime(module: ModuleType) -> Any:
    day = module.datetime(2024, 2, 29, 12, 30, tzinfo=module.timezone(module.timedelta(hours=2)))
    return (
        str(day + module.timedelta(days=366, microseconds=1)),
        day.isoformat(),
        day.strftime("%A %j"),
        day.isocalendar(),
    )


def _copy(module: ModuleType) -> Any:
    one: list[Any] = [{"a": (1, [2])}, {3}]
    one.append(one[0])
    other = module.deepcopy(one)
    return other, other[0] is other[2], other[0] is one[0], module.copy(one) == one


def _tokenize(module: ModuleType) -> Any:
    lines = iter(LANGUAGE.read_text("utf-8").splitlines(True)[:80])
    return [tuple(token) for token in module.generate_tokens(lambda: next(lines, ""))]


OTHERS: Final[dict[str, Callable[[ModuleType], Any]]] = {
    "_pydecimal.py": _decimal, "difflib.py": _difflib, "json/decoder.py": _json, "ast.py": _ast,
    "argparse.py": _argparse, "textwrap.py": _textwrap, "statistics.py": _statistics, "fractions.py": _fractions,
    "graphlib.py": _graphlib, "configparser.py": _configparser, "heapq.py": _heapq, "pprint.py": _pprint,
    "shlex.py": _shlex, "html/parser.py": _html, "copy.py": _copy,
    "urllib/parse.py": _url, "_pydatetime.py" if sys.version_info >= (3, 12) else "datetime.py": _datetime,
    "tokenize.py": _tokenize,
}  # fmt: skip


@pytest.mark.parametrize("file", OTHERS)
def test_other_peoples_code(file: str, tmp_path: Path) -> None:
    """Copies of modules of the standard library, so that they are nobody's library, compute the same."""
    name = file.removesuffix(".py").replace("/", "_")
    copy = tmp_path / f"{name}.py"
    copy.write_bytes((STDLIB / file).read_bytes())
    modules = load(copy, f"{name}_plain", anew=False), load(copy, f"{name}_anew", anew=True)
    try:
        as_it_is, anew = modules
        task = OTHERS[file]
        assert plain(on_stage(lambda: task(anew))) == plain(task(as_it_is))
    finally:
        for kind in ("plain", "anew"):
            sys.modules.pop(f"{name}_{kind}")


# --- The shape of code ----------------------------------------------------------------------------------------------


def sources(every: int) -> list[Path]:
    """Every n-th file of the standard library that compile here, and of this project."""
    mine = [path for folder in ("spec", "reference", "proofs") for path in sorted(Path(folder).rglob("*.py"))]
    files = sorted(
        path for path in STDLIB.rglob("*.py") if not {"test", "tests", "site-packages", "lib2to3"} & {*path.parts}
    )
    return [*mine, *files][::every]


def shape(file: Path) -> str:
    """What is wrong with the rewritten code of a file: each function has to have a counterpart with the same cells."""
    try:
        text = file.read_text("utf-8")
        old = compile(text, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return ""
    for before, after in _pairs(old, rewritten(text, str(file), file.name)):
        same = (before.co_name, before.co_freevars, before.co_argcount, before.co_flags & 0xFF)
        if same != (after.co_name, after.co_freevars, after.co_argcount, after.co_flags & 0xFF):
            return f"{before.co_qualname} is {same}"
    return ""


def test_the_shape_of_code() -> None:
    """A sample of many files; the rest is in the thorough tests."""
    assert [(path, wrong) for path in sources(25) if (wrong := shape(path))] == []


@pytest.mark.thorough
def test_the_shape_of_all_code() -> None:
    """Every file of the standard library and of this project."""
    assert [(path, wrong) for path in sources(1) if (wrong := shape(path))] == []


def test_code_is_given_back(tmp_path: Path) -> None:
    """While it is rewritten in place, calls go through hooks; afterwards every function is as it was."""
    file = tmp_path / "mine.py"
    file.write_text(
        textwrap.dedent("""
        class Counter:
            def __init__(self):
                self.n = 0

            def more(self):
                self.n += 1
                return self.n
        """),
        encoding="utf-8",
    )
    module = load(file, "mine_plain", anew=False)
    before = module.Counter.more.__code__
    instrumented = Instrumented()
    instrumented.add({str(file): "mine.py"})
    assert is_rewritten(module.Counter.more.__code__)
    sharing = Sharing()
    seen: list[str] = []

    def store(thing: Any, name: str, _: str) -> Any:
        seen.append(name)
        return thing

    publish(sharing.hooks() | {"store": store})
    assert module.Counter().more() == 1
    assert seen == ["n"]
    instrumented.restore()
    assert module.Counter.more.__code__ is before
    assert instrumented.blind == set()


def test_what_a_manager_holds_weakly_is_lost(tmp_path: Path) -> None:
    """To know an object again, the lockset filter does not keep it; one that takes its place is another."""
    file = tmp_path / "weakly.py"
    file.write_text(
        "import weakref\n"
        "class Box:\n"
        "    pass\n"
        "def lost():\n"
        "    table = weakref.WeakValueDictionary()\n"
        "    for number in range(3):\n"
        "        table[number] = box = Box()\n"
        "        box.now = number\n"
        "        assert table[number].now == number\n"
        "        del box\n"
        "    return len(table)\n"
    )
    assert on_stage(load(file, "weakly_anew", anew=True).lost) == 0
