"""The block size the measurements favour."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.policy import VerifyCost
from policy.block_size import RoundCosts, expected_emitted, predicted, recommend, verify_ms

FLAT = tuple(VerifyCost(rows, 40.0 + rows) for rows in range(1, 9))
LINEAR = tuple(VerifyCost(rows, 40.0 * rows) for rows in range(1, 9))


def costs(
    curve: tuple[VerifyCost, ...], draft_step_ms: float | None = 1.0, overhead_ms: float = 0.0
) -> RoundCosts:
    """What a round costs on this curve."""
    return RoundCosts(verify=curve, draft_step_ms=draft_step_ms, overhead_ms=overhead_ms)


def test_expected_tokens_are_one_plus_the_chance_of_each_draft() -> None:
    """Fractions 0.8, 0.64 and 0.512 give 2.952 tokens at K = 4 and 1.8 at K = 2."""
    rates = (0.8, 0.64, 0.512)
    assert expected_emitted(rates, 4) == pytest.approx(2.952)
    assert expected_emitted(rates, 2) == pytest.approx(1.8)


def test_unmeasured_positions_continue_with_the_last_conditional_acceptance() -> None:
    """A fifth row beyond a geometric 0.8 adds 0.8 to the fourth."""
    assert expected_emitted((0.8, 0.64, 0.512), 5) == pytest.approx(2.952 + 0.4096)
    assert expected_emitted((0.5, 0.0), 6) == pytest.approx(1.5)


def test_verify_cost_is_interpolated_and_never_extrapolated() -> None:
    """Between two points the line, outside the curve nothing."""
    curve = (VerifyCost(1, 40.0), VerifyCost(4, 70.0))
    assert verify_ms(curve, 2) == pytest.approx(50.0)
    assert verify_ms(curve, 4) == 70.0
    assert verify_ms(curve, 5) is None
    assert verify_ms((), 1) is None


def test_a_flat_curve_asks_for_wide_blocks_and_a_linear_one_for_narrow() -> None:
    """The same acceptance leads to opposite widths on machines of opposite cost."""
    rates = (0.9, 0.81, 0.729)
    assert recommend(4, rates, costs(FLAT)) == 8
    assert recommend(4, rates, costs(LINEAR)) == 2


def test_what_a_round_costs_besides_speaks_for_wide_blocks() -> None:
    """Bookkeeping of 400 ms a round makes the steep curve look flat, and dear drafts the flat one steep."""
    rates = (0.9, 0.81, 0.729)
    assert recommend(4, rates, costs(LINEAR, overhead_ms=400.0)) == 8
    assert recommend(4, rates, costs(FLAT, draft_step_ms=60.0)) == 2


def test_a_predicted_gain_within_the_margin_keeps_the_present_width() -> None:
    """Less than five per cent is not worth another profile."""
    curve = (VerifyCost(1, 40.0), VerifyCost(4, 70.0), VerifyCost(5, 76.5))
    rates = (0.8, 0.64, 0.512)
    gain = predicted(4, rates, costs(curve, 0.0))[5]
    assert 1.02 < gain < 1.05
    assert recommend(4, rates, costs(curve, 0.0)) == 4


def test_a_measured_width_competes_with_its_measurement_alone() -> None:
    """Width 8 looks best on the curve; once served and found slower it is not proposed again."""
    rates = (0.9, 0.81, 0.729)
    assert recommend(4, rates, costs(FLAT), {4: 1.5}) == 8
    assert recommend(4, rates, costs(FLAT), {4: 1.5, 8: 1.4}) == 7
    assert recommend(4, rates, costs(FLAT), {4: 1.5, 5: 1.6, 6: 1.55, 7: 1.5, 8: 1.4}) == 5
    assert recommend(4, rates, costs(FLAT), {4: 1.5, 5: 1.52, 6: 1.5, 7: 1.5, 8: None}) == 4


def test_only_legal_widths_are_recommended() -> None:
    """A width that was not found exact is no choice, however good it looks."""
    rates = (0.9, 0.81, 0.729)
    assert recommend(4, rates, costs(FLAT), legal=(2, 3, 4, 5)) == 5
    assert recommend(4, rates, costs(FLAT), legal=(2, 3, 4)) == 4


@pytest.mark.parametrize(
    ("rates", "curve", "draft"), [((), FLAT, 1.0), ((0.5,), (), 1.0), ((0.5,), FLAT, None)]
)
def test_without_acceptance_or_cost_there_is_no_recommendation(
    rates: tuple[float, ...], curve: tuple[VerifyCost, ...], draft: float | None
) -> None:
    """It is not guessed."""
    assert recommend(2, rates, costs(curve, draft)) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.integers(2, 8))
def test_a_recommendation_can_be_verified(rates: list[float], current: int) -> None:
    """It always lies on the measured curve."""
    falling = tuple(sorted(rates, reverse=True))
    assert recommend(current, falling, costs(FLAT, 0.5)) in range(2, 9)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=7),
    st.dictionaries(st.integers(2, 8), st.floats(0.3, 4.0), min_size=1),
)
def test_no_two_measured_widths_send_each_other_away(rates: list[float], measured: dict[int, float]) -> None:
    """Following recommendations visits each width at most once while the measurements stay as they are."""
    falling = tuple(sorted(rates, reverse=True))
    everywhere = {size: measured.get(size, 1.0) for size in range(2, 9)}
    size, visited = next(iter(measured)), list[int]()
    while size not in visited:
        visited.append(size)
        size = recommend(size, falling, costs(FLAT), everywhere) or size
    assert size == visited[-1]
