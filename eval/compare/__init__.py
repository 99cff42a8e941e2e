"""Policies side by side, on the same worlds, from the same start, for the same rollouts.

A comparison is runs of policies x seeds. The runs of a seed share world or pool, first policy model, and what their sampling is drawn from;
a policy differs from another in its picks alone. All figures are paired by seed: the difference to uniform, the share of the way to the
oracle, the step at which the best of uniform is reached.

**Budget.** A seed's budget is what its uniform run spent. Every rollout is charged: pilots, references, and groups that are discarded. A
run ends when it has spent `run.steps * batch_size * num_rollouts`, or made `run.steps` steps. The oracle's looks are counted apart and
charged to nobody: it is the ceiling, no policy that one could have.

**Signal.** A group that is learned from is informative if its rewards have variance. With R the rollouts charged in a run, r_g those of
group g, v_g its variance, and T the groups learned from,

    informative             = sum_{g in T, v_g > 0} r_g / R          share of what was paid for that taught something; per rollout
    informative_by_step     = mean over T of [v_g > 0]               of what was learned from; extra rollouts are free
    informative_by_token    = the first, with tokens for rollouts
    variance                = sum_{g in T} r_g v_g / R

For a policy without extra rollouts the first two are the same: the share of informative groups. **The main figure** is how far from
uniform to the oracle a policy came in `informative`: (policy - uniform) / (oracle - uniform), means over seeds first.

**Learning.** The curve is the mean success on held-out tasks (on the tasks trained on where a pool holds none out) before each step, over
charged rollouts; `area` is its mean over the budget, by trapezoid, `final` its value at the end of the budget. `best_of_uniform` is the
first step at which the isotonic fit of the curve reaches the best of the isotonic fit of uniform's, where a step is what a step of uniform
costs.

All of this is ours; the last figure is the paper's.
"""
