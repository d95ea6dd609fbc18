"""pytest plugin: what a suite may find, by a list of expected differences, SUITE_DIFFERENCES.

A line is `skip TEST -- REASON` for a test that is not run, or `fail TEST -- REASON` for one that must fail. TEST is the
name that pytest gives it, or the begin of several names and `*`; a file's name and `*` skips the file unread. A test
that fails and is not in the list fails the run, and so does a line with a test that passes, or without one that fails.
SUITE_RECORD names a file that gets every outcome, one a line.
"""

import collections
import os
import pathlib

import pytest

SEPARATOR = " -- "


def why_of(report):
    if isinstance(report.longrepr, tuple):  # skipped
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message.partition("\n")[0][:200] if crash else ""


class Line:
    def __init__(self, text):
        words, separator, self.reason = text.partition(SEPARATOR)
        self.kind, _, self.test = words.partition(" ")
        if not separator or self.kind not in ("skip", "fail") or not self.test:
            raise pytest.UsageError(f"{text!r} is not 'skip TEST{SEPARATOR}REASON' or 'fail TEST{SEPARATOR}REASON'")
        self.num_tests = 0

    def covers(self, test):
        return test.startswith(self.test[:-1]) if self.test.endswith("*") else test == self.test

    def __str__(self):
        return f"{self.kind} {self.test}{SEPARATOR}{self.reason}"


def read_lines():
    text = pathlib.Path(os.environ["SUITE_DIFFERENCES"]).read_text(encoding="utf-8")
    return [Line(line) for line in text.splitlines() if line and not line.startswith("#")]


class Differences:
    def __init__(self, is_whole):
        self.lines = read_lines()
        self.is_whole = is_whole  # else a line without a test says nothing
        self.outcomes = {}  # of a test: "passed", "skipped", "failed"; and why

    def line_of(self, test):
        return next((line for line in self.lines if line.covers(test)), None)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        for item in items:
            line = self.line_of(item.nodeid)
            if line:
                line.num_tests += 1
            if line and line.kind == "skip":
                item.add_marker(pytest.mark.skip(reason=line.reason))

    def pytest_ignore_collect(self, collection_path, config):
        """A file that is skipped as a whole is not even imported."""
        path = os.path.relpath(collection_path, config.rootpath)
        line = next((line for line in self.lines if line.kind == "skip" and line.test == f"{path}*"), None)
        if line:
            line.num_tests += 1
        return True if line else None

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            if self.outcomes.get(report.nodeid, ("passed",))[0] != "failed":
                self.outcomes[report.nodeid] = (report.outcome, why_of(report))

    def pytest_collectreport(self, report):
        if report.failed:
            self.outcomes[report.nodeid] = ("failed", "")

    def findings(self):
        """What fails the run."""
        failing = set()
        for test, (outcome, why) in self.outcomes.items():
            line = self.line_of(test)
            if outcome == "failed" and not line:
                yield f"fails and is in no list: {test}: {why}"
            if outcome == "passed" and line:
                yield f"stale, since {test} passes: {line}"
            if outcome == "failed":
                failing.add(line)
        for line in self.lines:
            if self.is_whole and line.num_tests == 0:
                yield f"stale, since no test has this name: {line}"
            elif line.kind == "fail" and line.num_tests > 0 and line not in failing:
                yield f"stale, since no test of it fails: {line}"

    def pytest_sessionfinish(self, session):
        if session.config.option.collectonly:
            return
        self.found = list(self.findings())
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if self.found else pytest.ExitCode.OK
        if record := os.environ.get("SUITE_RECORD"):
            lines = [f"{outcome}\t{test}\t{why}\n" for test, (outcome, why) in sorted(self.outcomes.items())]
            pathlib.Path(record).write_text("".join(lines), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter):
        counts = collections.Counter(outcome for outcome, _ in self.outcomes.values())
        skips = collections.Counter(why for outcome, why in self.outcomes.values() if outcome == "skipped")
        for why, count in skips.most_common():
            terminalreporter.line(f"  {count} skipped: {why}")
        for finding in getattr(self, "found", []):
            terminalreporter.line(finding)
        terminalreporter.line(f"{counts['passed']} pass, {counts['failed']} fail, {counts['skipped']} are skipped; "
                              f"{len(getattr(self, 'found', []))} findings")


def pytest_configure(config):
    config.pluginmanager.register(Differences("SUITE_PART" not in os.environ), "expected-differences")
