"""What stands out among all that is measured of a potential: the figures and sentences of the potential report."""

from bkrl.core.reporter import percent, percents
from bkrl.inspect.failures import Failures
from bkrl.inspect.quality import SEGMENT
from bkrl.inspect.report import Report
from bkrl.inspect.worth import LevelsWorth, Worth


class Quality(Report):
    """A potential's report, with what it is worth against the truth, and what stands out."""

    worth: Worth
    failures: Failures
    summary: str
    doubts: list[str]


def headline_figures(quality: Quality) -> dict[str, float | str | None]:
    """The few figures a terminal shows."""
    small, paper = quality["worth"]["small"], quality["worth"]["paper"]
    return {
        "rank correlation with the optimal value in play": small and small["mean_play_rho"],
        "rank correlation with the optimal value, all states": small and small["mean_states_rho"],
        "rank correlation with the way to success in play": paper and paper["mean_play_rho"],
        "note": quality["worth"]["note"] or None,
        "before success above failed": quality["segments"]["above"],
        "rank correlation with the recorded return": quality["foresight"],
        "coverage": quality["coverage"],
    }


def summary(report: Report, worth: Worth, failures: Failures, measured_in: str) -> str:
    """What stands out, in two or three sentences; `measured_in`: the dataset's env, where Φ may not have been built."""
    small, paper = worth["small"], worth["paper"]
    said = []
    if small and small["mean_states_rho"] is not None:
        rho = small["mean_play_rho"] if small["mean_play_rho"] is not None else small["mean_states_rho"]
        text = f"In {small['where']}, Φ orders states as their optimal value does with a rank correlation of {rho:.2f}"
        if paper and paper["mean_play_rho"] is not None:
            text += f", and in {paper['where']}, as their distance to success with {paper['mean_play_rho']:.2f}"
        said.append(text + f", on average over {_tasks(small)}.")
    if report["ordering"] is not None:
        said.append(
            f"On the dataset ({measured_in}), the end of a solved episode lies above other windows "
            f"{percent(report['ordering'])} of the time."
        )
    above, low, high = (report["segments"][name] for name in ("above", "low", "high"))
    if above is not None and low is not None and high is not None:
        said.append(
            f"The last {SEGMENT} moments before success lie above {SEGMENT} moments of failed episodes "
            f"{percent(above)} of the time ({percents(low, high)})."
        )
    if report["coverage"] == 0:
        said.append("Φ is constant: it shapes nothing.")
    else:
        said.append(f"It differs from its commonest value in {percent(report['coverage'])} of windows.")
    said += [f"Failure, {name}: {text}." for name, text in failures["found"].items()]
    if (plan := failures["plan"]) and plan["needed"]:
        knows = f"Of {len(plan['needed'])} sub-goals that the task needs Φ rises at {len(plan['covered'])}"
        missing = [one for one in plan["needed"] if one not in plan["covered"]]
        knows += f" (not at {', '.join(missing)})" if missing else ""
        more = ", ".join(plan["superfluous"])
        said.append(knows + (f", and at {more}, which solved episodes seldom hold." if more else "."))
    return " ".join(said)


def _tasks(part: LevelsWorth) -> str:
    """The tasks that a mean in play is over, and in how many of them Φ is constant."""
    play = [row["play_rho"] for row in part["tasks"]]
    total, flat = len(play), sum(one is not None and one["constant"] for one in play)
    known = sum(one is not None and one["rho"] is not None for one in play)
    if not known:
        return "tasks"
    over = "tasks" if known + flat == total else f"the {known + flat} of {total} tasks where it has one in play"
    return over + (f", {flat} of {total} counted as 0: Φ is constant there and ranks nothing" if flat else "")
