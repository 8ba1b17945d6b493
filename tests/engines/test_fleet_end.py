"""The end of a fleet. In a file of its own: one process holds one Ray, and this test kills all of its workers."""

import os
import signal
from dataclasses import replace

import pytest
from oracle import PROMPTS, SHORT, A, around

from esctl.assets import tiny_model_path
from esctl.engines import EngineSpec, open_engine
from esctl.engines.fleet import workers
from esctl.engines.fleet.engine import Fleet
from esctl.errors import EngineError

pytest.importorskip("ray", reason="Ray is not installed")
SPEC = EngineSpec(tiny_model_path(), kind="transformers", threads=1, max_model_len=512)


@pytest.mark.slow
def test_a_fleet_without_engines_stops_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_DEATHS", 0)
    notices: list[str] = []
    fleet = open_engine(replace(SPEC, replicas=2), notices.append)
    assert isinstance(fleet, Fleet)
    try:
        for pid in fleet.pool.pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"^no engine is left: .*--resume goes on$"):
            fleet.rollout(around(A), PROMPTS, SHORT)
    finally:
        fleet.close()
    assert "left out" in notices[-1]
