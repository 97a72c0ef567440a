"""A password in the URL of a database never reaches a message, a traceback or a file."""

import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import ehrseq
from helpers.settings import examples

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop.database import connect
from ehrsequencing.readers.omop.reader import import_omop

# A core that stands in no message, between characters that break parsers.
odd = st.text(st.sampled_from("/#?@[]:%&=+;' \\\"$aZ0é"), max_size=5)
passwords = st.tuples(odd, odd).map(lambda around: f"{around[0]}Xq7zW{around[1]}")
SHAPES = {
    "url": "postgres://me:{raw}@127.0.0.1:1/cdm",
    "encoded": "postgresql://me:{encoded}@127.0.0.1:1/cdm?schema=x",
    "query": "postgres://127.0.0.1:1/cdm?user=me&password={raw}",
    "one slash": "postgres:/me:{raw}@127.0.0.1/cdm",
    "DSN": "host=127.0.0.1 port=1 user=me password={raw}",
    "DuckDB": "duckdb://me:{raw}@cdm.duckdb",
    "unknown": "what{raw}://me:{raw}@host/cdm",
    "password only": "{raw}://",
}


@pytest.mark.parametrize("shape", SHAPES)
@given(password=passwords)
@example(password="pa/ss#Xq7zW?@[")
@example(password="Xq7zW%41%zz")
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_message_holds_the_password(tmp_path: Path, shape: str, password: str) -> None:
    source = SHAPES[shape].format(raw=password, encoded=quote(password, safe=""))
    with pytest.raises(EhrseqError) as caught:
        import_omop(source, tmp_path / "meds")
    assert "Xq7zW" not in "".join(traceback.format_exception(caught.value))
    links: list[BaseException] = [caught.value]
    for error in links:
        links += [e for e in (error.__cause__, error.__context__) if e is not None]
        assert "Xq7zW" not in repr(error) + str(error)
    for words in ([source, str(tmp_path / "meds")], [str(tmp_path), source]):
        result = ehrseq("import", "omop", *words)
        assert result.exit_code == 2
        assert "Xq7zW" not in result.output
    assert not list(tmp_path.iterdir())


@given(password=passwords, encoded=st.booleans())
@settings(max_examples=200)
def test_the_driver_gets_host_and_password_apart(password: str, encoded: bool) -> None:
    import ibis

    given_to = {}
    text = quote(password, safe="") if encoded else password.replace("%", "%25")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ibis.postgres, "connect", lambda **words: given_to.update(words))
        connect(f"postgres://me:{text}@db.example.org:5433/cdm?schema=omop")
    assert given_to == {
        "user": "me",
        "password": password,
        "host": "db.example.org",
        "port": 5433,
        "database": "cdm",
        "schema": "omop",
    }
