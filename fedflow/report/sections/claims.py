"""Verdicts on claims."""

from markupsafe import Markup

from fedflow.claims.verdicts import BY_TESTS, VERDICTS, CheckResult, Judged
from fedflow.report.blocks import Block, Box, Fold, Heading, Section, Text
from fedflow.report.compared import Compared

LEAD = """A comparison is over the seeds that both methods have; brackets hold the 95 % interval of the mean
paired difference (Student’s t; with three or four seeds, the standard deviation is at least the median one of
the same measure and partition). A comparison
is confirmed if all of the interval is on the side of the claim, not confirmed if none of it is, both with a
p-value of at most 0.05 that is adjusted for the number of comparisons (Benjamini-Hochberg), and not resolved
otherwise or with fewer than three seeds. “+”: a seed did not reach its target, so the number is a lower
bound."""
ELSEWHERE = " Some runs were made elsewhere: only claims and published tables show them, from results.csv."
VERDICT = Markup('<span class="verdict {}">{}</span> ')
NUMBERS = Markup("{} · {}: <b>{}</b>")


def section(c: Compared) -> Section | None:
    if not c.claims:
        return None
    counts = {name: sum(judged.verdict == name for judged in c.claims) for name in (*VERDICTS, *BY_TESTS)}
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    runs = [run for judged in c.claims for result in judged.comparisons for run in result.runs]
    lead = f"{counted}. {LEAD}{ELSEWHERE if any(run.committed for run in runs) else ''}"
    return Section("claims", "Claims", lead, [_box(judged) for judged in c.claims])


def _box(judged: Judged) -> Box:
    claim, deciding = judged.claim, [Text(_numbers(result), "detail") for result in judged.shown]
    every = [Text(_verdict(result.verdict) + _numbers(result), "detail") for result in judged.comparisons]
    blocks: list[Block] = [
        Heading(_verdict(judged.verdict) + claim.claim, claim.source),
        *([Text(Markup("<code>{}</code>").format(claim.test))] if claim.test else []),
        *deciding,
        *([Fold(judged.counts, every, "")] if judged.counts else []),
    ]
    return Box(blocks, "claim")


def _verdict(verdict: str) -> Markup:
    return VERDICT.format(verdict.replace(" ", "-"), verdict)


def _numbers(result: CheckResult) -> Markup:
    return NUMBERS.format(result.partition, result.statement, result.numbers)
