"""P-Avg: FedAvg for the model that is best after every client has adapted it to its own samples.

Source: Acar, Zhao, Zhu, Matas, Mattina, Whatmough, Saligrama, "Debiasing Model Updates for Improving
Personalized Federated Training", ICML 2021, experiments: P-Avg (Proto); Acar's thesis, Chapter 3.
Objective: mean_k F_k(T_k(w)), T: `adaptation`, prototypes or MAML (`fedflow/local/extensions/adaptation.py`).

Client: w_k <- SGD from w_t on F_k(T(w; support)), on query batches. Server: as uniform FedAvg. A client is
served T(w_t; all its samples).
*Reduces to* uniform FedAvg for adaptation: {name: maml, steps: 0}. With other steps of maml it is Per-FedAvg
with order: second.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: T(w_t; its samples); with prototypes also for
classes that no other client has.
*Differs from the authors' code in*: what `fedflow/local/extensions/adaptation.py` lists; that code trains
prototypes of logits after the first local step, but scores prototypes of features. It scores the adapted
mean of all clients' last models, here the adapted w_t.
"""

from fedflow.methods.averaging._averaging import weights
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.personal._adapting import AdaptedMethod
from fedflow.methods.registry import register


@register("pavg", "P-Avg")
class PAvg(AdaptedMethod, FedAvg):
    weighting: str = weights("uniform", "Chapter 3: uniform")
