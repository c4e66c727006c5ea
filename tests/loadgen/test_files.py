"""The output files: a line for each request, and the time of every chunk."""

import csv
import io
import json

from app.loadgen.figures import figures_of
from app.loadgen.files import Result, to_csv, to_json
from tests.loadgen.fakes import make_answer, make_run

ANSWERS = (
    make_answer(5.0, (0.1, 0.2, 0.4), output_tokens=4),
    make_answer(5.5, (0.25,), status="cancelled", ended=5.75, output_tokens=None, prompt_tokens=None),
    make_answer(
        6.0, (), status="failed", ended=6.5, output_tokens=None, prompt_tokens=None, connected=None, error="cut"
    ),
)


def result(rate: float = 2.0) -> Result:
    run = make_run(*ANSWERS, began=5.0)
    return Result(figures_of(run, rate), run.answers, run.began)


def test_the_csv_has_a_line_for_each_request():
    lines = list(csv.DictReader(io.StringIO(to_csv([result(2.0), result(float("inf"))]))))
    assert [line["rate"] for line in lines] == ["2"] * 3 + ["inf"] * 3
    assert ",".join(lines[0]) == (
        "rate,sent_s,late_ms,connect_ms,ttft_ms,tpot_ms,e2e_ms,prompt_tokens,cached_tokens,output_tokens,chunks,status,"
        "error"
    )
    assert [",".join(line.values()) for line in lines[:3]] == [
        "2,0.0,0.0,0.0,100.0,100.0,400.0,10,0,4,3,completed,",
        "2,0.5,0.0,0.0,250.0,,250.0,,0,1,1,cancelled,",
        "2,1.0,0.0,,,,500.0,,0,0,0,failed,cut",
    ]


def test_the_json_has_the_options_the_figures_and_every_chunk():
    found = json.loads(to_json({"url": "http://x"}, [result()]))
    assert found["url"] == "http://x"
    (run,) = found["runs"]
    assert (run["rate"], run["completed"], run["failed"], run["cancelled"]) == ("2", 1, 1, 1)
    assert [request["chunks_ms"] for request in run["requests"]] == [[100.0, 200.0, 400.0], [250.0], []]
    assert run["requests"][2]["error"] == "cut"
