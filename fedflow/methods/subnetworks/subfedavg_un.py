"""Sub-FedAvg (Un): clients prune single weights; the server averages each over the clients that keep it.

Source: chapter 4 of Vahidian's thesis, Algorithm 10; Vahidian, Morafah, Lin, "Personalized Federated Learning
by Structured and Unstructured Pruning under Data Heterogeneity", ICDCSW 2021, arXiv 2105.00562.

Client: w <- m_k * w_t, E epochs of SGD with gradients times m_k. After the first and after the last epoch it
derives a mask: in each weight tensor of convolutional and linear layers, what is below the percentile r_us of
the kept |w| goes. If the two masks are at least eps_us apart (share of entries that differ, averaged over
these tensors), less than p_us of all parameters are pruned, and the network under the second mask has an
accuracy of at least Acc_th, that mask is the new m_k and w <- m_k * w. Sends w and m_k.
Server: w_{t+1} = sum_k m_k w_k / sum_k m_k, entry by entry, whatever n_k; w_t where no client of the cohort
keeps it. Serves the client's last model.
*Reduces to* FedAvg with weighting: uniform (its global model) when target = 0, or when Acc_th or eps_us is
above 1. All equal masks: FedAvg on what they keep.
*State*: server w; client w_k, m_k. *Traffic*: 1 P down, 1 P and the mask up. Of P, only kept entries travel
up, 4 bytes each, and the mask has one bit per entry, also for biases, norms and statistics, which are never
pruned: 44,426 bits for LeNet-5 on 28x28 images, of which 44,190 can be 0.
*Newcomer*: the global model, unpruned, as every client that never took part.
A step drops ceil(r_us (n - 1)) of n kept weights, at least one per tensor. Once p_us is closer than r_us, its
rate is (p_us - pruned) / (1 - pruned), at most 5 %, so that target can be exceeded by an entry per tensor.
Pruned weights stay 0 under momentum, weight decay and Adam. Biases, and weights and statistics of norm
layers, are kept. Shares and accuracies are 0 to 1 here, per cent in the source. Fine-tuning trains all
weights. A straggler with one epoch has two equal masks and does not prune.
gate: test decides by the client's test samples, as the authors' code does: scores are then optimistic.
*Differs from the authors' code in*: held-out samples for the accuracy (gate), >= Acc_th where the code has >,
a last epoch that is E instead of 5, and PyTorch's start (there Xavier weights, and biases of N(0, 1)). There,
a client that never took part is scored with the initial model. FedZoo-Bench does not divide by the count: it
averages all clients of the cohort with weights n_k, zeros included, so weights that few clients keep shrink.
*Ambiguous*: the percentile is by tensor here and in the code; the text ("of the full dense network") can mean
a percentile of all weights, which would empty small layers. Algorithm 10 tests the accuracy before pruning,
the code after it, as here. Pruned is counted by mask here, by value in the code.
"""

from fedflow.local.client import Client, Update
from fedflow.methods.protocols import Published
from fedflow.methods.registry import register
from fedflow.methods.subnetworks._pruned import Pruned
from fedflow.metrics.cost import exchanged_bytes
from fedflow.models.flat import FlatModel


@register("subfedavg_un", "Sub-FedAvg (Un)")
class SubFedAvgUn(Published, Pruned):
    def local(self, client: Client) -> Update:
        mask = client.kept["mask"]
        trained = self.train(client, client.received["model"], mask)
        mask, diagnostics = self.prune(client, trained, mask) if self.target else (mask, {})
        return self.send(client, trained.last, mask, diagnostics)

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float:
        size = int(model.outside_norms.sum())
        kept, pruned = size * (1 - self.target), size * self.target
        return exchanged_bytes(rounds * cohort, down=size, up=kept, bits=pruned)
