"""PFLDyn: FedDyn for the model that is best after every client has adapted it to its own samples.

Source: Acar, Zhao, Zhu, Matas, Mattina, Whatmough, Saligrama, "Debiasing Model Updates for Improving
Personalized Federated Training", ICML 2021, Algorithms 2 and 3 (Update_1); Acar's thesis, Chapter 3.
Objective: mean_k F_k(T_k(theta)), T: `adaptation`, MAML or prototypes
(`fedflow/local/extensions/adaptation.py`).

Client and server: as FedDyn, with F_k(T(theta; support)) on a query batch in place of F_k(theta). A client is
served T(theta; all its samples).
*Reduces to* FedDyn for adaptation: {name: maml, steps: 0}; in the clients' first step, as alpha vanishes, to
P-Avg, or Per-FedAvg with order: second.
*Invariant*: as FedDyn; at a fixed point, the gradients of F_k(T_k(theta)) sum to 0.
*State*: as FedDyn. *Traffic*: 1 P down, 1 P up. *Newcomer*: T(theta; its samples), g_k = 0; with prototypes
also for classes that no other client has.
*Differs from the authors' code in*: what `fedflow/local/extensions/adaptation.py` lists; that code scores the
adapted mean of all clients' last models, here the adapted theta, or mean of the last cohort (served: mean).
With prototypes, the last layer has no gradient of the loss; the regularizer and weight decay still move it.
*Ambiguous*: a client that fails is excluded, as in the text; the authors' code replaces it (failed: replace).
The gradients with sum 0 are in theta; Theorem 2 prints gradients at T_k(theta).
"""

from fedflow.methods.averaging.feddyn import FedDyn, State
from fedflow.methods.personal._adapting import AdaptedMethod
from fedflow.methods.registry import register


@register("pfldyn", "PFLDyn")
class PFLDyn(AdaptedMethod[State], FedDyn):
    pass
