"""A simulated learner: skills instead of a language model, so that schedulers can be compared on pools of any size within minutes.

It is a model, and never the only evidence for a claim: what holds here holds if the assumptions below do.

**The pool.** Every environment has skills of its own, a task needs two of them; a pattern needs three operations, which all environments
share; a task has one pattern. With x standard normal for each skill, operation and task, a task starts at

    z_i(0) = logit(success_start) + spread (sqrt(a) (x_1 + x_2) / sqrt 2 + sqrt(b) (y_1 + y_2 + y_3) / sqrt 3 + sqrt(1 - a - b) e_i)

with a = environment_share, b = pattern_share: z_i(0) has standard deviation `spread` whatever a and b are. A share of tasks is impossible
or trivial and stays so.

**Success.** p_i = sigmoid(z_i) is the chance that a check passes; 0 or 1 for dead tasks. With the chance `together` all checks of a
rollout pass (p_i) or none does (1 - p_i); else each passes on its own. The reward is the share of n_i checks that pass, so it has
mean p_i, and r of n checks have probability

    f(r) = together (p [r = n] + (1 - p) [r = 0]) + (1 - together) C(n, r) p^r (1 - p)^(n - r),     P(v > 0) = 1 - sum_r f(r)^K.

**Learning.** What GRPO with std-normalised advantages gets out of a group. Let a decision succeed with p = sigmoid(z); its score is
d log pi / dz = y - p with y = 1 or 0. A rollout's score, averaged over its decisions as a loss that averages over tokens does, is r - p,
where r is the share of decisions that succeed: the reward. With A_k = (r_k - m) / s, m and s the group's mean and (population) deviation,

    g = 1/K sum_k A_k (r_k - p) = 1/(K s) sum_k (r_k - m) (r_k - m + m - p) = s^2 / s = s.

So a group moves z by a step in proportion to the standard deviation of its rewards, exactly, and nothing comes out of a group without
variance, whose A are 0. (Binary rewards: s = 1/2 mean |A| = sqrt(m (1 - m)).) The step is shared along the skills that the task needs:

    z_j += 2 s_i (gain_environment * shared skills / 2 + gain_pattern * shared operations / 3 + gain_own [i = j])

and every round the level of each skill and operation takes a random step (`drift`).

**Assumptions, all in one place.**
1. One number a task: whatever it needs, p_i is all there is. Nothing is known of lengths, tools or exploration.
2. Plain gradient steps of fixed size, summed over the groups of a round. No optimiser state, clipping, KL term or learning-rate schedule.
3. Practice helps where skills are shared and nowhere harms: nothing is forgotten but by drift.
4. Dead tasks stay dead. Labels cluster by loadings, as in ToolWorld; patterns are drawn alike in every environment.
5. Similarities are the shares of common skills, with independent noise: nobody derived them from text or code.
6. Every rollout gets its reward; costs are drawn beside it (log-normal: a task's own length, and a rollout's) and depend on nothing.

`structure` takes the information out: a share of tasks shows another one's environment, skills and pattern, and behaves as before. At 0 the
pool is its own counterexample, as `envsched pool shuffle` makes of a real one.
"""

SOURCE = "simulated"
"""`Pool.source` of a simulated pool."""
CAUTION = "A simulated learner: a model with assumptions (envsched_gnn/eval/simulate), never the only evidence for a claim."
