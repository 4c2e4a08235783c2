"""No peer without a test that re-derives its rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.registry import METHODS

TESTS = Path(__file__).parent.parent
# Those whose rule is written out beside their other tests, batch after batch.
ELSEWHERE = {
    "bn": ("test_methods_bn.py", "test_the_batch_alone_is_training_mode"),
    "cola": ("test_methods_cola.py", "test_weights_mix_and_rest_follow_autograd"),
    "eata": ("parity/test_entropy.py", "test_eata_eta_and_rdumb"),
    "foa": (
        "test_methods_foa.py",
        "test_a_batch_is_answered_by_the_best_prompt_and_shifted_by_the_past",
    ),
    "foa_shift": (
        "test_methods_recentring.py",
        "test_shift_uses_the_past_alone_and_ends_at_the_source",
    ),
    "memo": ("test_methods_memo.py", "test_one_image_is_one_step_on_the_marginal_entropy"),
    "neo": ("test_methods_recentring.py", "test_neo_follows_its_formula_in_both_forms"),
    "pea": ("test_methods_pea.py", "test_several_batches_against_numpy"),
    "rdumb": ("parity/test_entropy.py", "test_eata_eta_and_rdumb"),
    "t3a": ("test_methods_t3a.py", "test_several_batches_against_numpy"),
    "zoa": ("test_methods_zoa.py", "test_several_batches_by_hand"),
}
PEERS = [n for n in METHODS.names() if not METHODS[n].info.own and n != "source"]


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_s_rule_is_written_out(name: str) -> None:
    file, test = ELSEWHERE.get(name, ("", f"test_{name}"))
    places = [TESTS / file] if file else sorted(TESTS.glob("parity/test_*.py"))
    assert any(f"def {test}(" in place.read_text(encoding="utf-8") for place in places)
