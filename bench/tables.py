"""Results as markdown: one table per case, one line per peer."""

from __future__ import annotations

from typing import Any

CASES: dict[str, tuple[str, dict[str, str]]] = {
    # case: what it is, and its columns: figure → heading
    "seq": ("One run, {n} steps one after the other", {"steps_per_s": "steps/s", "ms_per_step": "ms per step"}),
    "fan": ("{n} runs of 20 steps at once", {"steps_per_s": "steps/s", "runs_per_s": "runs/s"}),
    "gather": ("One run, {n} steps at once", {"ms": "ms"}),
    "start": ("{n} runs of one step, started and finished", {"runs_per_s": "runs/s"}),
    "resume": (
        "kill -9 in step 47 of 50, a new process at once",
        {
            "new_process_to_step_47_s": "new process to step 47 again, s",
            "opened_s": "of that, imported and opened, s",
            "recorded_steps_run_again": "recorded steps run again",
        },
    ),
    "takeover": (
        "kill -9 in step 47 of 50, a second worker alive",
        {"kill_to_step_47_s": "kill to step 47 again, s", "recorded_steps_run_again": "recorded steps run again"},
    ),
    "second": (
        "A second worker starts beside a healthy one",
        {"steps_run_twice": "steps run twice", "steps_run_by_the_second": "steps run by the second"},
    ),
    "long": (
        "Replay of {n} steps in a new process",
        {
            "replay_s": "s",
            "opened_s": "before that, imported and opened, s",
            "rss_opened_mb": "MB when opened",
            "peak_rss_mb": "peak MB",
            "steps_run_again": "steps run again",
        },
    ),
    "late": (
        "One run of {n} steps: the last tenth against the first",
        {
            "late_to_early": "late / early",
            "early_ms": "early, ms",
            "late_ms": "late, ms",
            "steps_per_s": "steps/s",
            "bytes_per_step": "bytes per step",
            "peak_rss_mb": "peak MB",
        },
    ),
    "sleepers": (
        "{n} runs that wait",
        {
            "kb_per_run": "kB each in the worker: the second n",
            "first_kb_per_run": "the first n",
            "server_kb_per_run": "kB each in the server",
            "idle_cores": "cores while all wait",
            "parked_per_s": "parked per s",
        },
    ),
    "conversation": (
        "A conversation of {n} turns: bytes stored, as multiples of its text",
        {
            "times_text_as_argument": "as an argument",
            "times_text_as_result": "as a result",
            "ms_per_turn_as_argument": "ms per turn",
            "ms_per_turn_as_result": "ms per turn",
            "text_kb": "text, kB",
        },
    ),
    "import": ("import", {"ms": "ms", "with_python_ms": "ms with Python's own start"}),
}


def markdown(results: dict[str, Any]) -> str:
    machine = results["machine"]
    sitting = f"Python {machine['python']}, SQLite {machine['sqlite']}, {machine['system']}, {machine['cores']} cores"
    parts = [f"{sitting}, {machine['at']}. Medians; in brackets the least and the most of all repetitions."]
    for case, (title, columns) in CASES.items():
        lines = [line for line in results["results"] if line["case"] == case]
        if lines:
            parts += ["", f"### {case}: {title.format(n=usual(lines))}", "", *table(lines, columns)]
    return "\n".join(parts) + "\n"


def usual(lines: list[dict[str, Any]]) -> str:
    return f"{max(line['n'] for line in lines):,}"


def table(lines: list[dict[str, Any]], columns: dict[str, str]) -> list[str]:
    shown = {
        name: heading
        for name, heading in columns.items()
        if any(line["median"].get(name) is not None for line in lines)
    }
    rows = ["| | " + " | ".join(shown.values()) + " |", "|---" * (len(shown) + 1) + "|"]
    most = max(line["n"] for line in lines)
    for line in lines:
        peer = line["peer"] + (f" (n = {line['n']:,})" if line["n"] != most else "")
        cells = [cell(line, name, spread=name == next(iter(shown), "")) for name in shown]
        error = line["median"].get("error")
        rows.append(f"| {peer}{': ' + error if error else ''} | " + " | ".join(cells) + " |")
    return rows


def cell(line: dict[str, Any], name: str, *, spread: bool) -> str:
    value = line["median"].get(name)
    if value is None:
        return "–"
    numbers = [each[name] for each in line["repetitions"] if isinstance(each.get(name), int | float)]
    text = number(value)
    if spread and len(numbers) > 1 and number(min(numbers)) != number(max(numbers)):
        text += f" ({number(min(numbers))} to {number(max(numbers))})"
    return text


def number(value: Any) -> str:
    """Three figures that matter, and thousands with commas."""
    if not isinstance(value, int | float):
        return str(value)
    if value and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}"
