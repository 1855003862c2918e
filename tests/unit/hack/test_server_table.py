"""Tables of the server benchmark, and taking in what a later run measured."""

import json

import server_table


def row(kernel, context, step_ms, **more):
    figures = {"step_ms": step_ms, "tokens_per_s": 1000 / step_ms, "base_ms": 3.0, "cast_ms": 0.0, "attention_ms": 1.0}
    return {"kv_cast": "Never", "kernel": kernel, "gpus": 1, "batch": 1, "context": context, **figures, **more}


def results(date, *rows, **more):
    return {"machine": {"gpu": date}, "versions": {}, "date": date, "rows": list(rows), **more}


def test_a_case_measured_anew_takes_the_place_of_the_old_one_and_names_its_run(tmp_path, capsys):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(
        json.dumps(
            results("May", row("cuda", 1000, 5.0), row("cuda", 8000, 6.0), profiler=[{"way": "kept"}, {"way": "anew"}])
        )
    )
    new.write_text(
        json.dumps(results("June", row("cuda", 8000, 4.0), row("dsa", 8000, 7.0), profiler=[{"way": "anew", "x": 1}]))
    )
    server_table.main(old, new)
    merged = json.loads(old.read_text())
    assert [(each["kernel"], each["context"], each["step_ms"], each["run"]) for each in merged["rows"]] == [
        ("cuda", 1000, 5.0, "May"),
        ("cuda", 8000, 4.0, "June"),
        ("dsa", 8000, 7.0, "June"),
    ]
    assert merged["runs"]["June"]["machine"] == {"gpu": "June"}
    assert merged["profiler"] == [{"way": "kept"}, {"run": "June", "way": "anew", "x": 1}]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| ms a step (tok/s) | 1 x 1,000 | 1 x 8,000 |"
    assert lines[2:4] == ["| Never, cuda | 5.00 (200) | 4.00 (250) |", "| Never, dsa | - | 7.00 (143) |"]


def test_without_new_runs_the_file_is_left_as_it_is(tmp_path):
    path = tmp_path / "it.json"
    path.write_text(json.dumps(results("May", row("cuda", 1000, 5.0))))
    before = path.read_text()
    server_table.main(path)
    assert path.read_text() == before


def test_ranks_are_compared_where_there_are_several():
    alone = server_table.tables(results("May", row("cuda", 1000, 5.0)))
    assert "rank" not in alone
    skew = {"skew_percent": {"step": 0.2, "attention": 1.5}}
    table = server_table.tables(results("May", row("cuda", 1000, 5.0, **skew, gpus=8)))
    assert table.endswith("| Never, cuda, 8 GPUs | 0.20 / 1.50 |\n\n")
