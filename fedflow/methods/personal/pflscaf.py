"""PFLScaf: SCAFFOLD for the model that is best after every client has adapted it to its own samples.

Source: Acar, Zhao, Zhu, Matas, Mattina, Whatmough, Saligrama, "Debiasing Model Updates for Improving
Personalized Federated Training", ICML 2021, Algorithms 2 and 3 (Update_2); Acar's thesis, Chapter 3.
Objective: mean_k F_k(T_k(x)), T: `adaptation`, MAML or prototypes (`fedflow/local/extensions/adaptation.py`).

Client and server: as SCAFFOLD with option II, with F_k(T(x; support)) on a query batch in place of F_k(x). A
client is served T(x; all its samples).
*Reduces to* SCAFFOLD for adaptation: {name: maml, steps: 0}; while the control variates are 0 (its first
round), to P-Avg, or Per-FedAvg with order: second, with uniform weights.
*State*: as SCAFFOLD. *Traffic*: 2 P down, 2 P up. *Newcomer*: T(x; its samples), c_k = 0; with prototypes
also for classes that no other client has.
*Differs from the authors' code in*: what `fedflow/local/extensions/adaptation.py` lists, and what the page of
SCAFFOLD says of FedDyn's code. That code scores the adapted mean of all clients' last models, here the
adapted x.
"""

from fedflow.methods.averaging.scaffold import Scaffold, State
from fedflow.methods.personal._adapting import AdaptedMethod
from fedflow.methods.registry import register


@register("pflscaf", "PFLScaf")
class PFLScaf(AdaptedMethod[State], Scaffold):
    pass
