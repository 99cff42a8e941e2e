"""Slow oracle, page 4: the loop of select and observe, remembered in plain lists.

Knows: what must be kept between rounds: every selection, every observed group, what is in flight, what each expert said before the round.
Does not know: the batched code, quarantine.
"""

from tests.reference import history, prediction
from tests.reference.selection import Settings, select


class ReferenceScheduler:
    """Selects and learns as the design says, recomputing everything from the logs each time."""

    def __init__(self, world, settings=None, preset="default", v_floor=1e-6):
        self.world, self.settings, self.preset, self.v_floor = world, settings or Settings(), preset, v_floor
        self.past = []
        self.rounds = []
        self.log = []
        self.in_flight = set()
        self.reported = set()
        self.said = {}
        """What each expert expected of a selected group before its round: {(step, task): [E]}."""

    def expert_rounds(self):
        """Log-likelihoods of the observed groups by round: {step: [E]}."""
        rounds = {}
        for task, step, y in self.log:
            loglik = prediction.log_likelihood(self.said[step, task], history.z(y, self.v_floor) == 1.0)
            rounds[step] = [a + b for a, b in zip(rounds.get(step, [0.0] * len(prediction.EXPERTS)), loglik, strict=True)]
        return rounds

    def predict(self, t):
        """Everything known before step t: the paper's parts, p_e, expert weights, p_informative, and q."""
        parts = prediction.paper(self.world, self.log, t)
        parts["p_e"] = prediction.experts(self.world, self.log, t, self.settings.batch_size, self.v_floor)
        uniform = [1 / len(prediction.EXPERTS)] * len(prediction.EXPERTS)
        parts["expert_weights"] = uniform if self.preset == "paper" else prediction.expert_weights(self.expert_rounds())
        parts["p_informative"] = prediction.mixture(parts["expert_weights"], parts["p_e"])
        if self.preset == "paper":
            parts["q"] = prediction.pr(parts["u"])
        else:
            about = (self.world, self.log, t, self.settings.batch_size, self.v_floor)
            parts["q"] = prediction.expected_variance(parts["p_informative"], *about)
        return parts

    def select(self, t, n=None):
        """(parts, batch) of step t; the picks are in flight until they are observed or cancelled."""
        parts = self.predict(t)
        busy = {task for _, task in self.in_flight} | {task for step, task in self.past if step == t}
        batch = select(
            self.world,
            self.past,
            self.rounds,
            {task for task, _, _ in self.log},
            not any(step < t for _, step, _ in self.log),
            parts["W"]["long"],
            parts["q"],
            self.preset == "default",
            [not self.world.held_out[i] and i not in busy for i in self.world.tasks],
            t,
            self.settings.batch_size if n is None else n,
            self.settings,
        )
        self.rounds.append(t)
        for task, _, _ in batch.picks:
            self.past.append((t, task))
            self.in_flight.add((t, task))
            self.said[t, task] = [row[task] for row in parts["p_e"]]
        return parts, batch

    def observe(self, step, task, rewards):
        """Take the group that was selected at `step`, once."""
        if (step, task) in self.reported:
            return
        self.reported.add((step, task))
        self.in_flight.discard((step, task))
        y = history.group_statistics(rewards, *self.world.reward_range[task])
        if y is not None:
            self.log.append((task, step, y))

    def cancel(self, step, task):
        """The group will never report."""
        self.in_flight.discard((step, task))
