"""fedflow: federated-learning experiments that are right, fast, tracked and restartable.

In a notebook: ``import fedflow as ff`` and ``ff.run(partition=ff.dirichlet(alpha=0.1), method=ff.Ditto())``.
Partition schemes are functions (`ff.dirichlet`), methods classes (`ff.Ditto`).

Written by `python -m fedflow.front.stub` from the code; do not edit by hand.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from fedflow.front.inputs import Data, Division, Network
from fedflow.local.local_training import LocalTraining
from fedflow.partition import PartitionParams
from fedflow.settings import Settings
from fedflow.front.result import Result as Result
from fedflow.front.result import Comparison as Comparison
from fedflow.front.result import compare as compare
from fedflow.front.arrays import dataset as dataset
from fedflow.front.inputs import scheme as scheme
from fedflow.methods.method import Method as Method
from fedflow.local.client import Client as Client
from fedflow.local.client import Update as Update
from fedflow.local.samples import Batch as Batch
from fedflow.settings import option as option
from fedflow.local.local_training import LocalTraining as _Training
from fedflow.methods.fairness.aaggff_d import AAggFFD as _AAggFFD
from fedflow.methods.fairness.aaggff_s import AAggFFS as _AAggFFS
from fedflow.methods.fairness.afl import AFL as _AFL
from fedflow.methods.personal.apfl import APFL as _APFL
from fedflow.methods.asynchronous.cc_fedams import CCFedAMS as _CCFedAMS
from fedflow.methods.asynchronous.cc_fedadagrad import CCFedAdagrad as _CCFedAdagrad
from fedflow.methods.asynchronous.cc_fedadam import CCFedAdam as _CCFedAdam
from fedflow.methods.clustered.cfl import CFL as _CFL
from fedflow.methods.subnetworks.decouple import Decouple as _Decouple
from fedflow.methods.personal.ditto import Ditto as _Ditto
from fedflow.methods.clustered.flis_dc import FLISDC as _FLISDC
from fedflow.methods.clustered.flis_hc import FLISHC as _FLISHC
from fedflow.methods.clustered.flt import FLT as _FLT
from fedflow.methods.clustered.fesem import FeSEM as _FeSEM
from fedflow.methods.clustered.fedac import FedAC as _FedAC
from fedflow.methods.averaging.fedadagrad import FedAdagrad as _FedAdagrad
from fedflow.methods.averaging.fedadam import FedAdam as _FedAdam
from fedflow.methods.averaging.fedavg import FedAvg as _FedAvg
from fedflow.methods.averaging.fedavgm import FedAvgM as _FedAvgM
from fedflow.methods.asynchronous.fedbuff import FedBuff as _FedBuff
from fedflow.methods.generative.fedcgan import FedCGAN as _FedCGAN
from fedflow.methods.generative.fedcvae import FedCVAE as _FedCVAE
from fedflow.methods.clustered.fedcluster import FedCluster as _FedCluster
from fedflow.methods.averaging.feddyn import FedDyn as _FedDyn
from fedflow.methods.asynchronous.fedeff import FedEff as _FedEff
from fedflow.methods.generative.fedevg import FedEvg as _FedEvg
from fedflow.methods.subnetworks.fedhen import FedHeN as _FedHeN
from fedflow.methods.fairness.fedmgda import FedMGDA as _FedMGDA
from fedflow.methods.averaging.fednova import FedNova as _FedNova
from fedflow.methods.personal.fedper import FedPer as _FedPer
from fedflow.methods.averaging.fedprox import FedProx as _FedProx
from fedflow.methods.personal.fedrep import FedRep as _FedRep
from fedflow.methods.clustered.fedsc import FedSC as _FedSC
from fedflow.methods.averaging.fedsgd import FedSGD as _FedSGD
from fedflow.methods.averaging.fedsplit import FedSplit as _FedSplit
from fedflow.methods.averaging.fedyogi import FedYogi as _FedYogi
from fedflow.methods.subnetworks.heterofl import HeteroFL as _HeteroFL
from fedflow.methods.clustered.ifca import IFCA as _IFCA
from fedflow.methods.clustered.ifca_as_published import IFCAAsPublished as _IFCAAsPublished
from fedflow.methods.personal.l2gd import L2GD as _L2GD
from fedflow.methods.clustered.lcfl import LCFL as _LCFL
from fedflow.methods.personal.lg_fedavg import LGFedAvg as _LGFedAvg
from fedflow.methods.personal.local import LocalOnly as _LocalOnly
from fedflow.methods.personal.mtl import MTL as _MTL
from fedflow.methods.subnetworks.noside import NoSide as _NoSide
from fedflow.methods.clustered.one_shot import OneShot as _OneShot
from fedflow.methods.clustered.pacfl import PACFL as _PACFL
from fedflow.methods.personal.pavg import PAvg as _PAvg
from fedflow.methods.clustered.pca_km_hc import PCAKMHC as _PCAKMHC
from fedflow.methods.personal.pfldyn import PFLDyn as _PFLDyn
from fedflow.methods.personal.pflscaf import PFLScaf as _PFLScaf
from fedflow.methods.personal.pfedme import PFedMe as _PFedMe
from fedflow.methods.personal.perfedavg import PerFedAvg as _PerFedAvg
from fedflow.methods.fairness.propfair import PropFair as _PropFair
from fedflow.methods.fairness.qfedavg import QFedAvg as _QFedAvg
from fedflow.methods.fairness.qfedsgd import QFedSGD as _QFedSGD
from fedflow.methods.averaging.scaffold import Scaffold as _Scaffold
from fedflow.methods.personal.superfed import SuPerFed as _SuPerFed
from fedflow.methods.subnetworks.subfedavg_hy import SubFedAvgHy as _SubFedAvgHy
from fedflow.methods.subnetworks.subfedavg_un import SubFedAvgUn as _SubFedAvgUn
from fedflow.methods.fairness.term import TERM as _TERM

__version__: str

def run(data: Data='mnist5k', partition: Division | None=None, method: str | Method | type[Method] | Mapping[str, Any]='fedavg', *, model: Network | None=None, rounds: int=20, participation: float=1.0, seed: int=0, training: LocalTraining | Mapping[str, Any] | None=None, device: str='auto', compile: str='auto', progress: bool=True, record: str | Path | None=None, sampling: Literal['uniform', 'proportional', 'bernoulli', 'sweep', 'easy_first'] = 'uniform', client_curriculum: Settings | Mapping[str, Any] | None = None, min_cohort: int = 0, evaluate_every: int = 5, evaluate_clients: int | None = None, fine_tune: bool = True, keep_trained: bool = False, reports: Sequence[Literal['server', 'active', 'all']] = ..., adapt: Sequence[Settings | Mapping[str, Any]] = ..., adapt_from: Literal['served', 'active', 'all'] = 'served', keep_predictions: bool = False, sweep: bool = True, features: str | None = None, inception: str | None = None, target_accuracy: float | None = None, checkpoint_every: int = 5, timing: Settings | Mapping[str, Any] = ...) -> Result:
    """Train a federation in this process; returns its `Result`.

    Keywords:
        data: a source such as "mnist5k", a mapping as an entry of ``data`` in params.yaml, or `dataset(...)`
        partition: a scheme such as ``dirichlet(alpha=0.1, clients=20)``, a mapping as an entry of
            ``partitions``, or a list of the training rows of every client; default:
            ``dirichlet(alpha=0.5, clients=10)``
        method: an object such as ``Ditto(lam=1.0)``, its class, its name, or a mapping of ``method`` and
            hyper-parameters
        model: the name of a network, a mapping of ``name`` and options, a ``torch.nn.Module``, or a function
            that makes one; default: LeNet-5 for images from 28x28, one hidden layer for other inputs
        rounds: number of rounds
        participation: share of the clients in a round
        seed: seed of every random choice except the division of the data, whose scheme has another
        training: ``Training(lr=0.1, epochs=5)``, or a mapping of its fields
        device: "auto", "cpu" or "cuda"
        compile: "auto", "always" or "never": compile local steps on a CPU
        progress: print the progress
        record: a project folder: write the settings to its params.yaml and record the run in MLflow and
            ``results``, as ``fedflow run`` does; only with what params.yaml can name
        sampling: how cohorts are drawn: uniformly; in proportion to n_k (to use with uniform weights);
            each client with probability R (bernoulli); all clients in turns of m, in random order
            (sweep); or a growing pool of clients in such turns, those with a small loss first
            (easy_first) (one of uniform, proportional, bernoulli, sweep, easy_first; default uniform)
        client_curriculum: the pool of `sampling: easy_first`; null = its defaults there (a mapping or
            null; default null)
        min_cohort: stop with an error if fewer clients of a round succeed; with 0, a round in which all
            fail leaves the models as they were, and 1 / R such rounds in a row (at least 2) stop the
            run (a whole number >= 0; default 0)
        evaluate_every: rounds between evaluations; the last round is always evaluated (a whole number
            >= 1; default 5)
        evaluate_clients: number of random clients to score, the same in all evaluations; null = all (a
            whole number >= 1 or null; default null)
        fine_tune: at the end, also score every client after one more local training (true or false;
            default true)
        keep_trained: keep every client's last trained model, and score it at the end (true or false;
            default false)
        reports: also score models on the complete test set: the one that is broadcast (server), the
            mean of the models that this round's clients trained (active), and that of all clients' last
            models (all) (one of server, active, all; default [])
        adapt: score every client at every evaluation after adaptation to all its training samples too;
            each item as training.adaptation, at most one of each name (a list, each item a mapping;
            default [])
        adapt_from: the model that is adapted for run.adapt: the one that the client is served, or a
            mean of trained models, active or all as in run.reports (one of served, active, all; default
            served)
        keep_predictions: at the end, write what the served models predict for every client's own test
            samples (true or false; default false)
        sweep: at the end, also score every client with all mixtures of its global and its personal
            model, where the method has them (true or false; default true)
        features: network of `central` whose inputs of the last layer measure generated images; null =
            pixels (text or null; default null)
        inception: file of weights of Inception v3, whose features measure generated images instead
            (text or null; default null)
        target_accuracy: also report the rounds and bytes until this local accuracy (a number > 0 and <=
            1 or null; default null)
        checkpoint_every: rounds between checkpoints (a whole number >= 1; default 5)
        timing: how fast clients are, in simulated time (a mapping; default Timing(speeds=[[1.0, 2.0],
            [3.0, 5.0], [5.0, 8.0]], work='step', steady=True, down=[0.0, 0.0], up=[0.0, 0.0],
            given=None))
    """
    ...

def acid(*, classes_per_client: int = 5, anonymous: bool = False, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """ACID and ALID: every client owns S consecutive classes, and all clients hold equally many samples.

    Keywords:
        classes_per_client: classes of a client (a whole number >= 1; default 5)
        anonymous: rename each client's classes to 0..S-1 at random (ALID) (true or false; default
            false)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def dirichlet(*, alpha: float = 0.1, min_size: int = 10, balance: bool = True, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Dirichlet: the samples of every label are divided in proportions drawn from Dir(alpha).

    Keywords:
        alpha: concentration; smaller is more skewed (a number > 0; default 0.1)
        min_size: smallest number of samples of a client (a whole number >= 0; default 10)
        balance: give no more to clients that already hold an equal share (true or false; default true)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def domains(*, column: str = 'domain', clients_per_domain: Sequence[int] | None = None, samples_per_client: int | None = None, draw: Literal['balanced', 'random'] = 'balanced', clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Domains: every client holds samples of one domain, and the domains are planted groups.

    Keywords:
        column: column of the data set that holds the domains (text; default domain)
        clients_per_domain: clients of each domain; null = equal shares (a list, each item a whole
            number >= 1 or null; default null)
        samples_per_client: training samples of a client; null = all are used (a whole number >= 1 or
            null; default null)
        draw: the same number of each label, or any (one of balanced, random; default balanced)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def attributes(*, columns: Sequence[str] = ..., samples_per_client: int | None = None, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Attributes: every client holds samples of one attribute, which have no other of the attributes.

    Keywords:
        columns: columns of the data set: 1 if a sample has the attribute, else 0 (a list, each item
            text; default ['smiling', 'wavy_hair', 'wearing_hat'])
        samples_per_client: training samples of a client; null = all are used (a whole number >= 1 or
            null; default null)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def dirichlet_clients(*, alpha: float = 0.2, min_size: int = 10, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Dirichlet by client: every client draws its label shares, and labels are divided in proportion to them.

    Keywords:
        alpha: concentration; smaller is more skewed (a number > 0; default 0.2)
        min_size: smallest number of samples of a client (a whole number >= 0; default 10)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def dirichlet_disjoint(*, alpha: float = 0.01, official: bool = False, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Dirichlet client by client: each draws its label shares and takes unused samples accordingly.

    Keywords:
        alpha: concentration; smaller is more skewed (a number > 0; default 0.01)
        official: as the authors' code: clients share samples (true or false; default false)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def dirichlet_exact(*, sigma: float = 0.0, power: float = 0.0, sizes: Sequence[int] | None = None, alpha: float = 0.3, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Dirichlet with exact sizes: every client draws its samples one by one from its own label prior.

    Keywords:
        sigma: sd of the log of a client's size; 0 = equal sizes (a number >= 0 and <= 10; default 0.0)
        power: sizes proportional to k^power, client k = 1..N; 0 = equal sizes (a number >= -10 and <=
            10; default 0.0)
        sizes: size of each client, other samples are unused; null = all are used (a list, each item a
            whole number >= 1 or null; default null)
        alpha: concentration of a client's label prior; smaller is more skewed (a number > 0; default
            0.3)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def iid(*, sigma: float = 0.0, power: float = 0.0, sizes: Sequence[int] | None = None, stratified: bool = False, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """IID: every client gets an equal random share of all samples.

    Keywords:
        sigma: sd of the log of a client's size; 0 = equal sizes (a number >= 0 and <= 10; default 0.0)
        power: sizes proportional to k^power, client k = 1..N; 0 = equal sizes (a number >= -10 and <=
            10; default 0.0)
        sizes: size of each client, other samples are unused; null = all are used (a list, each item a
            whole number >= 1 or null; default null)
        stratified: the same number of each label for all clients (true or false; default false)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def kway(*, ways: int = 5, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Kway: every client is a task with k classes, named 0..k-1, and all classes are used equally often.

    Keywords:
        ways: classes of a client (a whole number >= 1; default 5)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def label_skew(*, fraction: float = 0.2, cover: bool = False, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Label skew: every client holds a fixed share of the labels, and each label is divided among its owners.

    Keywords:
        fraction: share of the labels that a client holds (a number > 0 and <= 1; default 0.2)
        cover: draw again until every label has an owner (true or false; default false)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def label_groups(*, groups: int = 2, labels_per_group: int | None = None, overlap: int = 0, sampler: Literal['mixed', 'slice', 'independent'] = 'mixed', samples_per_label: int = 250, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Label groups: classes and clients are divided into groups, and the data of a group among its clients.

    Keywords:
        groups: number of groups (a whole number >= 1; default 2)
        labels_per_group: labels of a group; null = the classes are cut into disjoint groups (a whole
            number >= 1 or null; default null)
        overlap: labels that a group shares with the next on the ring; needs labels_per_group (a whole
            number >= 0; default 0)
        sampler: how samples of a group are divided over its clients (one of mixed, slice, independent;
            default mixed)
        samples_per_label: samples of each label that a client draws, for sampler: independent (a whole
            number >= 1; default 250)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def label_shares(*, sigma: float = 0.0, power: float = 0.0, sizes: Sequence[int] | None = None, shares: str | Sequence[Sequence[float]], by: Literal['client', 'label'] = 'client', clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Label shares: a matrix defines the labels of every client, and their shares.

    Keywords:
        sigma: sd of the log of a client's size; 0 = equal sizes (a number >= 0 and <= 10; default 0.0)
        power: sizes proportional to k^power, client k = 1..N; 0 = equal sizes (a number >= -10 and <=
            10; default 0.0)
        sizes: size of each client, other samples are unused; null = all are used (a list, each item a
            whole number >= 1 or null; default null)
        shares: a row of numbers per client, one per label; or a file of rows, .npy or .csv without a
            header (text or a list, each item a list, each item a number; required)
        by: a row is the label mix of a client, or a column the division of a label (one of client,
            label; default client)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def natural(*, column: str = 'user', min_samples: int = 1, min_test: int = 0, max_samples: int | None = None, max_test: int | None = None, groups: str | None = None, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Natural: every client is one value of a column, such as a user, and holds its samples.

    Keywords:
        column: column of the data set that holds the clients (text; default user)
        min_samples: training samples that a value needs to qualify (a whole number >= 1; default 1)
        min_test: test samples that a value needs to qualify (a whole number >= 0; default 0)
        max_samples: largest number of training samples of a client; null = all (a whole number >= 1 or
            null; default null)
        max_test: largest number of test samples of a client; null = all (a whole number >= 1 or null;
            default null)
        groups: another column, constant for every client, with the planted groups (text or null;
            default null)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def noniid1(*, fraction: float = 0.2, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Noniid1: label skew in which most clients resemble the first, and the others hold few of its labels.

    Keywords:
        fraction: share of the labels that a client holds (a number > 0 and <= 0.5; default 0.2)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def shards(*, shards_per_client: int = 2, length: int | None = None, order: Literal['random', 'in_order'] = 'random', clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Label shards: samples sorted by label are cut into runs, and every client gets m runs.

    Keywords:
        shards_per_client: label shards of a client (a whole number >= 1; default 2)
        length: samples of one shard; null = as many as deal all samples (a whole number >= 1 or null;
            default null)
        order: how shards are dealt (one of random, in_order; default random)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def structured(*, labels_per_group: int = 5, alpha: int | None = None, delta: float = 2.0, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Structured: groups of consecutive classes, in which few clients hold most of the samples.

    Keywords:
        labels_per_group: labels of a group; the last may have fewer (a whole number >= 1; default 5)
        alpha: size that every chunk exceeds; null = floor(D / (2 M)) of a group (a whole number >= 0 or
            null; default null)
        delta: larger: fewer clients hold most samples (a number > 0; default 2.0)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def structured_as_published(*, labels_per_group: int = 5, alpha: int | None = None, delta: float = 2.0, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Structured as published: clients of a shorter last group are also tested on label 0, as in FLT's code.

    Keywords:
        labels_per_group: labels of a group; the last may have fewer (a whole number >= 1; default 5)
        alpha: size that every chunk exceeds; null = floor(D / (2 M)) of a group (a whole number >= 0 or
            null; default null)
        delta: larger: fewer clients hold most samples (a number > 0; default 2.0)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

def super_clusters(*, clusters: str | Sequence[Sequence[int]] = 'discovered', p: int = 3, threshold: float | None = None, number: int | None = None, control: Literal['none', 'matched_random', 'repo'] = 'none', allocation: Literal['damped', 'proportional'] = 'damped', within: Literal['labels', 'shards', 'dirichlet'] = 'labels', labels_per_client: int | str = 'published', fraction: float | None = None, shards_per_client: int = 2, alpha: float = 0.5, min_size: int = 15, clients: int | None = None, seed: int = 0, public: int = 0, pieces: int | None = None, pieces_used: Literal['first', 'random'] = 'first', difficulty: Settings | Mapping[str, Any] | None = None, holdout: float = 0.0, holdout_stratified: bool = True, selection: float = 0.0, validation: float = 0.0, label_noise: Settings | Mapping[str, Any] | None = None, newcomers: float = 0.0) -> PartitionParams:
    """Super clusters: similar classes form super clusters, and every client holds labels of only one of them.

    Keywords:
        clusters: lists of classes; cifar10, stl10, fmnist, cifar100: as published; or discovered from
            the inputs (text or a list, each item a list, each item a whole number; default discovered)
        p: left singular vectors of a class, to discover clusters (a whole number >= 1; default 3)
        threshold: degrees up to which classes merge; smaller: more clusters, more skewed (a number >= 0
            or null; default null)
        number: number of clusters; null, without a threshold = by the largest gap (a whole number >= 1
            or null; default null)
        control: random classes in place of the super clusters (one of none, matched_random, repo;
            default none)
        allocation: clients of each super cluster (one of damped, proportional; default damped)
        within: division of a super cluster's samples (one of labels, shards, dirichlet; default labels)
        labels_per_client: labels of a client; published = 2, or a fifth of the super cluster's if that
            is more (a whole number or text; default published)
        fraction: share of the super cluster's labels that a client holds, instead of labels_per_client
            (a number > 0 and <= 1 or null; default null)
        shards_per_client: label shards of a client, within shards (a whole number >= 1; default 2)
        alpha: concentration, within dirichlet; smaller: more skewed (a number > 0; default 0.5)
        min_size: smallest number of samples of a client, within dirichlet (a whole number >= 0; default
            15)
        clients: number of clients; null = as many as the data define (a whole number >= 1 or null;
            default null)
        seed: seed of every random choice (a whole number >= 0; default 0)
        public: training samples that are set aside for the server, stratified by class (a whole number
            >= 0; default 0)
        pieces: divide the data into this many pieces, of which `clients` are used (a whole number >= 1
            or null; default null)
        pieces_used: which pieces are used (one of first, random; default first)
        difficulty: deal easy samples to the first clients, hard ones to the last (a mapping or null;
            default null)
        holdout: share of a client's own samples that it is tested on; 0 = test samples of its labels (a
            number >= 0 and < 1; default 0.0)
        holdout_stratified: hold out the same share of every label, instead of random samples (true or
            false; default true)
        selection: share of each client's training samples held out for model selection, for methods
            with select_on: heldout, and for SuPerFed (a number >= 0 and < 1; default 0.0)
        validation: share of each client's training samples that replace the test set (tuning) (a number
            >= 0 and < 1; default 0.0)
        label_noise: wrong training labels (a mapping or null; default null)
        newcomers: share of the clients that join after the last round (a number >= 0 and < 1; default
            0.0)
    """
    ...

class Training(_Training):
    """Settings of local training that all methods share.

    Keywords:
        epochs: local epochs (a whole number >= 1; default 1)
        steps: local steps of every training in place of epochs, the last of which may be incomplete (a
            whole number >= 1 or null; default null)
        batch_size: samples per batch; the last one may be smaller; 0 = full gradient (a whole number >=
            0 and <= 1e+09; default 10)
        lr: client learning rate (a number > 0; default 0.05)
        optimizer: takes the local steps: sgd, or adam with weight decay in the gradient and eps 1e-8
            (one of sgd, adam; default sgd)
        momentum: SGD momentum (a number >= 0 and < 1; default 0.0)
        betas: decay of the two moments of adam (a list, each item a number >= 0 and < 1; default [0.9,
            0.999])
        weight_decay: L2 penalty in the gradient (a number >= 0; default 0.0)
        clip_norm: largest norm of a gradient, without weight decay; longer ones are scaled down (a
            number > 0 or null; default null)
        augment: random views of images: mirrored; shifted by up to 4 pixels, zero outside; a hole of
            16x16 (one of none, flip_crop, flip_crop_cutout; default none)
        objective: side losses beside the data loss: robustness, distillation, or both; null = none (a
            mapping or null; default null)
        adaptation: clients minimize the loss of the model after adaptation to other own samples; null =
            none (a mapping or null; default null)
        curriculum: local steps see a growing prefix of the samples, sorted by difficulty; null = all
            samples (a mapping or null; default null)
        precision: of matrix products: tf32 rounds their factors on GPUs that support it, bf16 on all
            devices (one of float32, tf32, bf16; default float32)
        lr_decay: factor on lr after every round; other learning rates of a method do not decay (a
            number > 0 and <= 1; default 1.0)
        lr_decay_every: rounds between these factors (a whole number >= 1; default 1)
        lr_within: [a, b]: local step i, from 0 in every training, has the rate lr (1 + a i)^-b; other
            learning rates of a method do not change (a list, each item a number >= 0 or null; default
            null)
        stragglers: share of a cohort, rounded down, whose epochs are random in a round, from
            least_epochs to E (a number >= 0 and <= 1; default 0.0)
        least_epochs: fewest epochs of a straggler (a whole number >= 1; default 1)
        drop_stragglers: drop stragglers from the cohort (true or false; default false)
    """
    def __init__(self, *, epochs: int = 1, steps: int | None = None, batch_size: int = 10, lr: float = 0.05, optimizer: Literal['sgd', 'adam'] = 'sgd', momentum: float = 0.0, betas: Sequence[float] = ..., weight_decay: float = 0.0, clip_norm: float | None = None, augment: Literal['none', 'flip_crop', 'flip_crop_cutout'] = 'none', objective: Settings | Mapping[str, Any] | None = None, adaptation: Settings | Mapping[str, Any] | None = None, curriculum: Settings | Mapping[str, Any] | None = None, precision: Literal['float32', 'tf32', 'bf16'] = 'float32', lr_decay: float = 1.0, lr_decay_every: int = 1, lr_within: Sequence[float] | None = None, stragglers: float = 0.0, least_epochs: int = 1, drop_stragglers: bool = False) -> None: ...

class AAggFFD(_AAggFFD):
    """AAggFF-D: a server that learns the weights of many clients, of which few take part, by exponentiated steps.

    Keywords:
        host: the method whose weights are replaced: name (fedadagrad, fedadam, fedavg, fedavgm,
            fedprox, fedsgd, fedyogi), and its hyper-parameters (a mapping; default {name: fedavg})
        cdf: distribution function that maps a loss, divided by the mean loss, to [0, 1] (one of
            weibull, exponential, frechet, normal, gumbel, logistic; default normal)
        largest: the largest response: C, the share of clients that report, or 1/K as in AAggFF-S (one
            of share, 1/K; default share)
        lipschitz: constant L of the step; null = c + 2 c / C, c the largest response: by default 2 + C
            (a number > 0 or null; default null)
    """
    def __init__(self, *, host: Settings | Mapping[str, Any] = ..., cdf: Literal['weibull', 'exponential', 'frechet', 'normal', 'gumbel', 'logistic'] = 'normal', largest: Literal['share', '1/K'] = 'share', lipschitz: float | None = None) -> None: ...

class AAggFFS(_AAggFFS):
    """AAggFF-S: a server that learns the weights of few clients, which all take part, by online Newton steps.

    Keywords:
        host: the method whose weights are replaced: name (fedadagrad, fedadam, fedavg, fedavgm,
            fedprox, fedsgd, fedyogi), and its hyper-parameters (a mapping; default {name: fedavg})
        cdf: distribution function that maps a loss, divided by the mean loss, to [0, 1] (one of
            weibull, exponential, frechet, normal, gumbel, logistic; default normal)
        alpha: weight of ||p||^2 / 2 (a number > 0; default 4.0)
        beta: weight of the squares; null = K/4 (the theorem holds for at most 1/2) (a number > 0 or
            null; default null)
    """
    def __init__(self, *, host: Settings | Mapping[str, Any] = ..., cdf: Literal['weibull', 'exponential', 'frechet', 'normal', 'gumbel', 'logistic'] = 'normal', alpha: float = 4.0, beta: float | None = None) -> None: ...

class AFL(_AFL):
    """AFL: the server learns adversarial weights, which grow for clients with high losses.

    Keywords:
        lambda_lr: step size of lambda (a number >= 0; default 0.1)
        prior: initial lambda: uniform, or in proportion to n_k (one of uniform, samples; default
            uniform)
        lambda_used: weights of the models: lambda after this round's step, or before it (one of new,
            old; default new)
        served: the model served and scored: w, or the mean of w over all rounds so far (one of last,
            average; default last)
    """
    def __init__(self, *, lambda_lr: float = 0.1, prior: Literal['uniform', 'samples'] = 'uniform', lambda_used: Literal['new', 'old'] = 'new', served: Literal['last', 'average'] = 'last') -> None: ...

class APFL(_APFL):
    """APFL: a global FedAvg model, a personal model for every client, and their mixture, which is served.

    Keywords:
        weighting: weights p_k of the average: n_k or uniform (one of samples, uniform; default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        served: the model served and scored: the personal or the global one (one of personal, global;
            default personal)
        alpha: initial share of the personal model in the mixture (a number >= 0 and <= 1; default 0.5)
        adaptive: clients learn their alpha by gradient descent (true or false; default true)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, served: Literal['personal', 'global'] = 'personal', alpha: float = 0.5, adaptive: bool = True) -> None: ...

class CCFedAMS(_CCFedAMS):
    """CC-FedAMS: CC-FedAdam that divides by the largest second moment so far, as AMSGrad does.

    Keywords:
        weighting: weights of updates in their mean: n_k or uniform (one of samples, uniform; default
            uniform)
        server_lr: server learning rate (a number > 0; default 0.01)
        concurrency: clients that train at any time, in multiples of m (at most all); 0 = synchronous,
            as FedAvg (a number >= 0; default 2.0)
        most_epochs: clients draw between 1 and this many epochs; null = E for all (a whole number >= 1
            or null; default null)
        beta: decay of the first moment m (a number >= 0 and < 1; default 0.9)
        eps: added to sqrt(v) (a number > 0; default 1e-08)
        normalize: divide updates by the number K of local steps; by the sum of their eta_i / eta with
            lr_within (true or false; default true)
        gamma: decay of the second moment v (a number >= 0 and < 1; default 0.99)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 0.01, concurrency: float = 2.0, most_epochs: int | None = None, beta: float = 0.9, eps: float = 1e-08, normalize: bool = True, gamma: float = 0.99) -> None: ...

class CCFedAdagrad(_CCFedAdagrad):
    """CC-FedAdagrad: asynchronous clients, and Adagrad steps of the server on the updates that have arrived.

    Keywords:
        weighting: weights of updates in their mean: n_k or uniform (one of samples, uniform; default
            uniform)
        server_lr: server learning rate (a number > 0; default 0.01)
        concurrency: clients that train at any time, in multiples of m (at most all); 0 = synchronous,
            as FedAvg (a number >= 0; default 2.0)
        most_epochs: clients draw between 1 and this many epochs; null = E for all (a whole number >= 1
            or null; default null)
        beta: decay of the first moment m (a number >= 0 and < 1; default 0.9)
        eps: added to sqrt(v) (a number > 0; default 1e-08)
        normalize: divide updates by the number K of local steps; by the sum of their eta_i / eta with
            lr_within (true or false; default true)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 0.01, concurrency: float = 2.0, most_epochs: int | None = None, beta: float = 0.9, eps: float = 1e-08, normalize: bool = True) -> None: ...

class CCFedAdam(_CCFedAdam):
    """CC-FedAdam: asynchronous clients, and Adam steps of the server on the updates that have arrived.

    Keywords:
        weighting: weights of updates in their mean: n_k or uniform (one of samples, uniform; default
            uniform)
        server_lr: server learning rate (a number > 0; default 0.01)
        concurrency: clients that train at any time, in multiples of m (at most all); 0 = synchronous,
            as FedAvg (a number >= 0; default 2.0)
        most_epochs: clients draw between 1 and this many epochs; null = E for all (a whole number >= 1
            or null; default null)
        beta: decay of the first moment m (a number >= 0 and < 1; default 0.9)
        eps: added to sqrt(v) (a number > 0; default 1e-08)
        normalize: divide updates by the number K of local steps; by the sum of their eta_i / eta with
            lr_within (true or false; default true)
        gamma: decay of the second moment v (a number >= 0 and < 1; default 0.99)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 0.01, concurrency: float = 2.0, most_epochs: int | None = None, beta: float = 0.9, eps: float = 1e-08, normalize: bool = True, gamma: float = 0.99) -> None: ...

class CFL(_CFL):
    """CFL: clients train together until their updates disagree; then the server splits them in two, recursively.

    Keywords:
        weighting: weights within a cluster: n_k or uniform (one of samples, uniform; default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        eps1: a cluster is split when the norm of its mean update is below this (a number >= 0; default
            0.4)
        eps2: and the norm of its longest update is above this (a number >= 0; default 1.6)
        gamma: bound on the relative noise of updates; null = no such condition (a number >= 0 or null;
            default null)
        linkage: how updates are split: single linkage, which is optimal, or complete (one of single,
            complete; default single)
        warm_up: rounds before the first split (a whole number >= 0; default 0)
        min_size: smallest cluster, in updates, that may be split (a whole number >= 2; default 3)
        absent: absent clients: left out, or counted with their last update (one of omit, stale; default
            omit)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, eps1: float = 0.4, eps2: float = 1.6, gamma: float | None = None, linkage: Literal['single', 'complete'] = 'single', warm_up: int = 0, min_size: int = 3, absent: Literal['omit', 'stale'] = 'omit') -> None: ...

class Decouple(_Decouple):
    """Decouple: FedAvg among the clients with the simple network, and FedAvg among those with the complex one.

    Keywords:
        failed: clients that fail: left out of the means, or counted with the model that they received
            (one of exclude, replace; default exclude)
        simple: share of the clients with the simple network, the first ones (a number >= 0 and <= 1;
            default 0.5)
    """
    def __init__(self, *, failed: Literal['exclude', 'replace'] = 'exclude', simple: float = 0.5) -> None: ...

class Ditto(_Ditto):
    """Ditto: a global FedAvg model, and a personal model for every client that is pulled towards it.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        served: the model served and scored: the personal or the global one (one of personal, global;
            default personal)
        lam: pull of the personal towards the global model (a number >= 0; default 1.0)
        personal_epochs: local epochs of the personal model; null = as the global one (a whole number >=
            1 or null; default null)
        personal_lr: learning rate of the personal model; null = as the global one, with its decay (a
            number > 0 or null; default null)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, served: Literal['personal', 'global'] = 'personal', lam: float = 1.0, personal_epochs: int | None = None, personal_lr: float | None = None) -> None: ...

class FLISDC(_FLISDC):
    """FLIS (DC): in every round, the server averages those of the cohort whose models agree on its data.

    Keywords:
        public: the server's inputs: a data set under `data`; null = those that the partition sets aside
            (text or null; default null)
        noise: uniform random inputs, instead of a data set (a whole number >= 0; default 0)
        inference: what is compared: predicted classes (one_hot) or probabilities (soft) (one of
            one_hot, soft; default one_hot)
        beta: smallest similarity of clients that are averaged (a number >= 0; default 0.4)
        weighting: weights within a cluster: n_k or uniform (one of samples, uniform; default samples)
        select_on: samples by which a client chooses its model: its training samples; held-out ones; or,
            for the model that it is served only, its test samples, which is optimistic (one of train,
            heldout, test; default train)
    """
    def __init__(self, *, public: str | None = None, noise: int = 0, inference: Literal['one_hot', 'soft'] = 'one_hot', beta: float = 0.4, weighting: Literal['samples', 'uniform'] = 'samples', select_on: Literal['train', 'heldout', 'test'] = 'train') -> None: ...

class FLISHC(_FLISHC):
    """FLIS (HC): before the first round, clients whose models agree on the server's data are clustered.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        linkage: distance between clusters; wpgma = the mean of two rows, regardless of cluster sizes
            (one of single, complete, upgma, wpgma; default wpgma)
        assign: newcomers join the closest cluster within the threshold, or else form a new one
            (attach); or all clients are clustered again (rehc) (one of attach, rehc; default attach)
        public: the server's inputs: a data set under `data`; null = those that the partition sets aside
            (text or null; default null)
        noise: uniform random inputs, instead of a data set (a whole number >= 0; default 0)
        inference: what is compared: predicted classes (one_hot) or probabilities (soft) (one of
            one_hot, soft; default one_hot)
        beta: smallest similarity of clients in one cluster (a number >= 0; default 0.45)
        variant: disjoint clusters, or neighbors of every client (one of clusters, neighborhood; default
            clusters)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, linkage: Literal['single', 'complete', 'upgma', 'wpgma'] = 'wpgma', assign: Literal['attach', 'rehc'] = 'attach', public: str | None = None, noise: int = 0, inference: Literal['one_hot', 'soft'] = 'one_hot', beta: float = 0.45, variant: Literal['clusters', 'neighborhood'] = 'clusters') -> None: ...

class FLT(_FLT):
    """FLT: clients whose images an auto-encoder maps to similar points are averaged, as a graph or as clusters.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        case: which clients are averaged: a client and its relatives, or disjoint clusters of relatives
            (one of graph, clusters; default graph)
        clusters: number of clusters in Ward's clustering of the graph; null = its connected components
            (a whole number >= 1 or null; default null)
        k: means in a signature; null = one for each label of the client (a whole number >= 1 or null;
            default 5)
        reducer: embedding of all means before clients are compared (one of none, pca, umap, tsne;
            default none)
        dimensions: dimensions of that embedding (a whole number >= 1; default 2)
        distance: between signatures: of means matched one to one, its square, or of the closest pair
            (one of matching, matching_sq, min_pair; default matching)
        gamma: clients closer than this are related; null = 1 after umap, else the middle of the largest
            gap (a number > 0 or null; default null)
        absent: absent clients: left out, or counted with their last model (one of omit, stale; default
            omit)
        members: members of Ward's clusters; leaf_order repeats a bug of the code, which takes the i-th
            leaf of the tree for client i (one of right, leaf_order; default right)
        averaging: in_place repeats a bug of the code: clients are averaged one after the other, over
            the means of earlier ones (one of at_once, in_place; default at_once)
        assign: newcomers are related to the clients that took part, or all clients are related again
            (one of attach, all; default attach)
        encoder: auto-encoder; null = conv for gray images, residual for color; pixels: none; labels:
            clients with the same set of labels are related (an upper bound) (one of conv, residual,
            pixels, labels; default null)
        latent: dimensions of an embedded image (a whole number >= 1; default 128)
        pretraining: epochs on the server's images (a whole number >= 1; default 40)
        finetuning: epochs on clients' images (a whole number >= 0; default 5)
        finetune: training of the encoder in these epochs: each client its own; one by all clients in
            turn; or one by the server, on images that all clients send (one of per_client, sequential,
            central; default per_client)
        public: the server's images: a data set under `data`; null = those that the partition sets aside
            (text or null; default null)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, case: Literal['graph', 'clusters'] = 'graph', clusters: int | None = None, k: int | None = 5, reducer: Literal['none', 'pca', 'umap', 'tsne'] = 'none', dimensions: int = 2, distance: Literal['matching', 'matching_sq', 'min_pair'] = 'matching', gamma: float | None = None, absent: Literal['omit', 'stale'] = 'omit', members: Literal['right', 'leaf_order'] = 'right', averaging: Literal['at_once', 'in_place'] = 'at_once', assign: Literal['attach', 'all'] = 'attach', encoder: Literal['conv', 'residual', 'pixels', 'labels'] | None = None, latent: int = 128, pretraining: int = 40, finetuning: int = 5, finetune: Literal['per_client', 'sequential', 'central'] = 'per_client', public: str | None = None) -> None: ...

class FeSEM(_FeSEM):
    """FeSEM: the server keeps several centers; clients whose models are close to each other share one.

    Keywords:
        weighting: weights: n_k or uniform (one of samples, uniform; default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        centers: number of centers (a whole number >= 1; default 2)
        cluster_over: models that are assigned and averaged: the cohort's, or all clients' by k-means
            (one of cohort, all; default cohort)
        compared: name patterns of the parameters that are compared; null = all (a list, each item text
            or null; default null)
        recluster_every: rounds between assignments (a whole number >= 1; default 1)
        first: first centers: models far apart, or means of random parts of the clients (one of
            farthest, random; default farthest)
        empty: a center without clients moves to the model farthest from all others, or stays (one of
            farthest, keep; default farthest)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, centers: int = 2, cluster_over: Literal['cohort', 'all'] = 'cohort', compared: Sequence[str] | None = None, recluster_every: int = 1, first: Literal['farthest', 'random'] = 'farthest', empty: Literal['farthest', 'keep'] = 'farthest') -> None: ...

class FedAC(_FedAC):
    """FedAC: personal models are pulled towards their cluster's centroid, embeddings towards the mean of all.

    Keywords:
        clusters: initial number of clusters (a whole number >= 1; default 2)
        mu: pull of a model towards its centroid (a number >= 0; default 0.1)
        lam: pull of embeddings to their mean (a number >= 0; default 0.1)
        decision: name patterns of the decision h; null = the architecture's classifier (a list, each
            item text or null; default null)
        rank: number of principal directions; less than the cohort size (a whole number >= 1; default 2)
        center: subtract the cohort's mean model before projecting models (true or false; default false)
        refresh_every: rounds between refreshes of M (a whole number >= 1; default 5)
        tune_every: rounds between merges or splits; 0 = never (a whole number >= 0; default 10)
        merge_below: a cluster is merged when its G is below this; 0 = never, null = when G is 0 (a
            single client) (a number >= 0 or null; default null)
        split_above: a cluster is split when its G is above this; null = when its halves are separate (a
            number > 0 or null; default null)
        protect_singletons: do not merge clusters of one client, whose G is 0 (true or false; default
            false)
        allow_split_from_one: allow splitting a cluster of all clients, which has no G (true or false;
            default false)
    """
    def __init__(self, *, clusters: int = 2, mu: float = 0.1, lam: float = 0.1, decision: Sequence[str] | None = None, rank: int = 2, center: bool = False, refresh_every: int = 5, tune_every: int = 10, merge_below: float | None = None, split_above: float | None = None, protect_singletons: bool = False, allow_split_from_one: bool = False) -> None: ...

class FedAdagrad(_FedAdagrad):
    """FedAdagrad: the server's steps shrink in coordinates where large mean updates have accumulated.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 0.1)
        beta1: decay of the first moment m (a number >= 0 and < 1; default 0.0)
        tau: added to sqrt(v): how adaptive the steps are (a number > 0; default 0.001)
        v0: first value of v; null = tau^2 (public code: 0) (a number >= 0 or null; default null)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 0.1, beta1: float = 0.0, tau: float = 0.001, v0: float | None = None) -> None: ...

class FedAdam(_FedAdam):
    """FedAdam: the server treats the mean update as a gradient and takes an Adam step.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 0.01)
        beta1: decay of the first moment m (a number >= 0 and < 1; default 0.9)
        tau: added to sqrt(v): how adaptive the steps are (a number > 0; default 0.001)
        v0: first value of v; null = tau^2 (public code: 0) (a number >= 0 or null; default null)
        beta2: decay of the second moment v (a number >= 0 and < 1; default 0.99)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 0.01, beta1: float = 0.9, tau: float = 0.001, v0: float | None = None, beta2: float = 0.99) -> None: ...

class FedAvg(_FedAvg):
    """FedAvg: clients train the global model on their own data; the server averages the results.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0) -> None: ...

class FedAvgM(_FedAvgM):
    """FedAvgM: the server treats the mean update as a gradient and descends with momentum.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        beta: server momentum (a number >= 0 and < 1; default 0.9)
        form: form of momentum (one of polyak, nesterov, damped; default polyak)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, beta: float = 0.9, form: Literal['polyak', 'nesterov', 'damped'] = 'polyak') -> None: ...

class FedBuff(_FedBuff):
    """FedBuff: asynchronous clients, and a server that averages every m updates, stale ones included.

    Keywords:
        weighting: weights of updates in their mean: n_k or uniform (one of samples, uniform; default
            uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        concurrency: clients that train at any time, in multiples of m (at most all); 0 = synchronous,
            as FedAvg (a number >= 0; default 2.0)
        most_epochs: clients draw between 1 and this many epochs; null = E for all (a whole number >= 1
            or null; default null)
        staleness: s(tau), the weight of stale updates: 1 / sqrt(1 + tau), or 1 (none) (one of sqrt,
            none; default sqrt)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, concurrency: float = 2.0, most_epochs: int | None = None, staleness: Literal['sqrt', 'none'] = 'sqrt') -> None: ...

class FedCGAN(_FedCGAN):
    """FedCGAN: FedAvg of an AC-GAN, whose generator then makes the server's images.

    Keywords:
        spc: images per class (a whole number >= 1; default 10)
        classifier: training on the images, before an evaluation (a mapping; default
            Classifier(epochs=200, batch_size=64, lr=0.001, weight_decay=0.0001))
    """
    def __init__(self, *, spc: int = 10, classifier: Settings | Mapping[str, Any] = ...) -> None: ...

class FedCVAE(_FedCVAE):
    """FedCVAE: FedAvg of a conditional variational auto-encoder, whose decoder then makes the server's images.

    Keywords:
        spc: images per class (a whole number >= 1; default 10)
        classifier: training on the images, before an evaluation (a mapping; default
            Classifier(epochs=200, batch_size=64, lr=0.001, weight_decay=0.0001))
        beta: weight of KL (a number >= 0; default 1.0)
    """
    def __init__(self, *, spc: int = 10, classifier: Settings | Mapping[str, Any] = ..., beta: float = 1.0) -> None: ...

class FedCluster(_FedCluster):
    """FedCluster: clusters of clients train in turn within a round, each from the previous cluster's model.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        mu: weight of the clients' proximal term, as in FedProx (a number >= 0; default 0.0)
        clusters: clusters, and cycles per round (a whole number >= 1; default 2)
        grouping: how clients are clustered, once: at random into equal parts, or by similar labels (one
            of random, similar; default random)
        given: the cluster 0..M-1 of every client, instead of a grouping (a list, each item a whole
            number or null; default null)
        order: sigma: drawn in every round, or 1..M (one of reshuffle, fixed; default reshuffle)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, mu: float = 0.0, clusters: int = 2, grouping: Literal['random', 'similar'] = 'random', given: Sequence[int] | None = None, order: Literal['reshuffle', 'fixed'] = 'reshuffle') -> None: ...

class FedDyn(_FedDyn):
    """FedDyn: a dynamic regularizer changes each client's objective so that a consensus is optimal for all.

    Keywords:
        alpha: weight of the dynamic regularizer (a number > 0; default 0.1)
        weighting: objective: clients count equally, or in proportion to n_k (one of uniform, samples;
            default uniform)
        served: the model served and scored: theta, or the mean of the last cohort's models (one of
            broadcast, mean; default broadcast)
        clip: what training.clip_norm limits: the changed gradient, or that without its term alpha w
            (one of whole, replicate; default whole)
        failed: clients that fail: left out of the mean, or replaced in it by the previous mean (one of
            exclude, replace; default exclude)
    """
    def __init__(self, *, alpha: float = 0.1, weighting: Literal['uniform', 'samples'] = 'uniform', served: Literal['broadcast', 'mean'] = 'broadcast', clip: Literal['whole', 'replicate'] = 'whole', failed: Literal['exclude', 'replace'] = 'exclude') -> None: ...

class FedEff(_FedEff):
    """FedEff: every client trains as many epochs as fit into a round, so that fast clients do not wait.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        policy: epochs: fitted to clients (UEC), the same for all (EC), both with tau that decays by 2 %
            a round (UEIC, EIC), or random from 1 to E_b (one of UEC, EC, UEIC, EIC, random; default
            UEC)
        tau: epoch deciding factor: the share of E_b that the mean client trains (a number > 0 and <= 1;
            default 0.5)
        base_epochs: epochs of the mean client when tau = 1 (a whole number >= 1; default 5)
        unit: the estimated round time is rounded up to a multiple of this (a number > 0; default 1.0)
        slow: clients too slow for one epoch train one anyway (clamp), or do not take part (skip) (one
            of clamp, skip; default clamp)
        most_epochs: upper limit of epochs; null = none (a whole number >= 1 or null; default null)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, policy: Literal['UEC', 'EC', 'UEIC', 'EIC', 'random'] = 'UEC', tau: float = 0.5, base_epochs: int = 5, unit: float = 1.0, slow: Literal['clamp', 'skip'] = 'clamp', most_epochs: int | None = None) -> None: ...

class FedEvg(_FedEvg):
    """FedEvg: the server draws labeled images from the mixture of all clients' energy-based models.

    Keywords:
        spc: images per class (a whole number >= 1; default 10)
        classifier: training on the images, before an evaluation (a mapping; default
            Classifier(epochs=200, batch_size=64, lr=0.001, weight_decay=0.0001))
        energy: E(x, y), or E(x) (one of joint, marginal; default joint)
        weights: weights of clients by image: n_k exp(-sign E), n_k exp(-E), or n_k (one of signed, raw,
            mean; default signed)
        beta_first: first step size of the server (a number >= 0; default 10.0)
        beta_last: last step size of the server (a number >= 0; default 1.0)
        schedule: of beta_t from the first to the last round (one of ddpm_cosine, linear, quadratic,
            sigmoid, half_cosine, constant; default ddpm_cosine)
        server_noise: standard deviation of the server's noise: sigma_s, sigma_s beta_t, or sqrt(2
            beta_t) (one of const, prop, langevin; default const)
        server_sigma: scale of the server's noise (a number >= 0; default 0.0001)
        proposal: where negatives start: the client's copy of the images, the batch, or noise (one of
            pcd, cd, noise; default pcd)
        sgld_steps: steps of SGLD per batch (a whole number >= 0; default 1)
        alpha: step size of SGLD (a number >= 0; default 1.0)
        sigma: standard deviation of the noise of SGLD (a number >= 0; default 0.01)
        clip: largest entry of a gradient of the energy; null = no limit (a number > 0 or null; default
            3.0)
        limits: clip images and negatives to [0, 1] after their steps (true or false; default true)
        lam: weight of the cross-entropy on the images (a number >= 0; default 0.1)
        generative: train the energy too, not only the classifier (true or false; default true)
        reinit: rounds after which the clients of a cohort start from fresh networks; null = never (a
            whole number >= 1 or null; default 1)
    """
    def __init__(self, *, spc: int = 10, classifier: Settings | Mapping[str, Any] = ..., energy: Literal['joint', 'marginal'] = 'joint', weights: Literal['signed', 'raw', 'mean'] = 'signed', beta_first: float = 10.0, beta_last: float = 1.0, schedule: Literal['ddpm_cosine', 'linear', 'quadratic', 'sigmoid', 'half_cosine', 'constant'] = 'ddpm_cosine', server_noise: Literal['const', 'prop', 'langevin'] = 'const', server_sigma: float = 0.0001, proposal: Literal['pcd', 'cd', 'noise'] = 'pcd', sgld_steps: int = 1, alpha: float = 1.0, sigma: float = 0.01, clip: float | None = 3.0, limits: bool = True, lam: float = 0.1, generative: bool = True, reinit: int | None = 1) -> None: ...

class FedHeN(_FedHeN):
    """FedHeN: simple clients train the first part of a network, complex ones all of it and that part beside it.

    Keywords:
        failed: clients that fail: left out of the means, or counted with the model that they received
            (one of exclude, replace; default exclude)
        simple: share of the clients with the simple network, the first ones (a number >= 0 and <= 1;
            default 0.5)
    """
    def __init__(self, *, failed: Literal['exclude', 'replace'] = 'exclude', simple: float = 0.5) -> None: ...

class FedMGDA(_FedMGDA):
    """FedMGDA+: the server steps along a common descent direction of all clients, whatever their updates' norms.

    Keywords:
        weighting: the weights p_k that lambda stays near: n_k or uniform (one of samples, uniform;
            default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        eps: largest |lambda_k - p_k| (a number >= 0 and <= 1; default 0.1)
        normalize: scale every update to length 1 (true or false; default true)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, eps: float = 0.1, normalize: bool = True) -> None: ...

class FedNova(_FedNova):
    """FedNova: each update is divided by its client's amount of local work before the average.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        mu: weight of a proximal term in local training (a number >= 0; default 0.0)
        gmf: server momentum (global momentum factor) (a number >= 0 and < 1; default 0.0)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, mu: float = 0.0, gmf: float = 0.0) -> None: ...

class FedPer(_FedPer):
    """FedPer: the body of the network is shared, its head stays with the client.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        private: name patterns of the private parameters; null = the architecture's classifier (a list,
            each item text or null; default null)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', private: Sequence[str] | None = None) -> None: ...

class FedProx(_FedProx):
    """FedProx: FedAvg with a proximal term that keeps clients near the global model.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        mu: weight of the proximal term (a number >= 0; default 0.01)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, mu: float = 0.01) -> None: ...

class FedRep(_FedRep):
    """FedRep: the body of the network is shared, its head stays with the client; the head trains first.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        private: name patterns of the private parameters; null = the architecture's classifier (a list,
            each item text or null; default null)
        head_epochs: local epochs of the head; null = `training.epochs` (a whole number >= 0 or null;
            default null)
        body_epochs: local epochs of the body, after those of the head (a whole number >= 1; default 1)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', private: Sequence[str] | None = None, head_epochs: int | None = None, body_epochs: int = 1) -> None: ...

class FedSC(_FedSC):
    """FedSC: clients with similar labels are clustered, and every round of a global model uses all clusters.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        mu: weight of the clients' proximal term, as in FedProx (a number >= 0; default 0.0)
        clusters: clusters (a whole number >= 1; default 2)
        grouping: how clients are clustered, once: by ``feature`` and ``metric``, or at random (one of
            similar, random; default similar)
        given: the cluster 0..M-1 of every client, instead of a grouping (a list, each item a whole
            number or null; default null)
        order: order of the clusters: always the same, or drawn in every round (one of fixed, reshuffle;
            default fixed)
        mode: clusters train in turn (cycle), or all contribute to one cohort (stratified) (one of
            cycle, stratified; default cycle)
        feature: how clients are compared: by label shares, or by the update of one local training (one
            of labels, update; default labels)
        metric: their distance: Euclidean, or 1 - cosine (one of l2, cosine; default l2)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, mu: float = 0.0, clusters: int = 2, grouping: Literal['similar', 'random'] = 'similar', given: Sequence[int] | None = None, order: Literal['fixed', 'reshuffle'] = 'fixed', mode: Literal['cycle', 'stratified'] = 'cycle', feature: Literal['labels', 'update'] = 'labels', metric: Literal['l2', 'cosine'] = 'l2') -> None: ...

class FedSGD(_FedSGD):
    """FedSGD: a round is one gradient step on all the data of the cohort.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0) -> None: ...

class FedSplit(_FedSplit):
    """FedSplit: operator splitting, which converges to the optimum even though clients take many local steps.

    Keywords:
        s: step size of the proximal operator; 1 / sqrt(l L) if known (a number > 0; default 10.0)
        relax: length of the reflections; 1/2 for networks (a number > 0 and <= 1; default 1.0)
        reg: weight of a pull towards the initial model, for losses that are convex but not strongly (a
            number >= 0; default 0.0)
        weighting: objective: clients count in proportion to n_k, or equally (one of samples, uniform;
            default samples)
        server: x is the mean of z_k over all clients, or over the active ones, the cohort (one of all,
            active; default all)
    """
    def __init__(self, *, s: float = 10.0, relax: float = 1.0, reg: float = 0.0, weighting: Literal['samples', 'uniform'] = 'samples', server: Literal['all', 'active'] = 'all') -> None: ...

class FedYogi(_FedYogi):
    """FedYogi: FedAdam whose second moment changes by at most the square of the update.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 0.01)
        beta1: decay of the first moment m (a number >= 0 and < 1; default 0.9)
        tau: added to sqrt(v): how adaptive the steps are (a number > 0; default 0.001)
        v0: first value of v; null = tau^2 (public code: 0) (a number >= 0 or null; default null)
        beta2: decay of the second moment v (a number >= 0 and < 1; default 0.99)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 0.01, beta1: float = 0.9, tau: float = 0.001, v0: float | None = None, beta2: float = 0.99) -> None: ...

class HeteroFL(_HeteroFL):
    """HeteroFL: clients hold networks of several widths, each the first channels of the next wider one.

    Keywords:
        failed: clients that fail: left out of the means, or counted with the model that they received
            (one of exclude, replace; default exclude)
        rates: shares of the channels of the networks, each of them for as many clients (a list, each
            item a number; default [1.0, 0.5, 0.25])
    """
    def __init__(self, *, failed: Literal['exclude', 'replace'] = 'exclude', rates: Sequence[float] = ...) -> None: ...

class IFCA(_IFCA):
    """IFCA: the server keeps k models; every client trains the one that fits its data best.

    Keywords:
        weighting: weights p_k within a cluster: uniform or n_k (one of uniform, samples; default
            uniform)
        clusters: number of models (a whole number >= 1; default 2)
        shared: lower layers that all clusters share: none; averaged over the cohort; or frozen (one of
            none, averaged, frozen; default none)
        own: name patterns of the layers that are then not shared; null = the architecture's classifier
            (a list, each item text or null; default null)
        pretraining: rounds of FedAvg first (a whole number >= 0; default 0)
        random_assignment_rounds: rounds after pretraining in which a random part of the clients trains
            each model (a whole number >= 0; default 0)
        restarts: number of starts; the one with the lowest training loss is kept (a whole number >= 1;
            default 1)
        trial: rounds of training for each of several starts before they are compared (a whole number >=
            1; default 10)
        min_init_share: a start is redrawn unless each model is best for at least this share of clients
            (a number >= 0 and <= 1; default 0.0)
        averaging: what is averaged: trained models (option II) or gradients (option I) (one of model,
            gradient; default model)
        denominator: D of gradient averaging: all clients, the cohort, or the cluster's part of it (one
            of all, cohort, cluster; default cohort)
        server_lr: step size of gradient averaging (a number > 0; default 0.1)
    """
    def __init__(self, *, weighting: Literal['uniform', 'samples'] = 'uniform', clusters: int = 2, shared: Literal['none', 'averaged', 'frozen'] = 'none', own: Sequence[str] | None = None, pretraining: int = 0, random_assignment_rounds: int = 0, restarts: int = 1, trial: int = 10, min_init_share: float = 0.0, averaging: Literal['model', 'gradient'] = 'model', denominator: Literal['all', 'cohort', 'cluster'] = 'cohort', server_lr: float = 0.1) -> None: ...

class IFCAAsPublished(_IFCAAsPublished):
    """IFCA as published: clients are tested with the model that fits their test data best.

    Keywords:
        weighting: weights p_k within a cluster: uniform or n_k (one of uniform, samples; default
            uniform)
        clusters: number of models (a whole number >= 1; default 2)
        shared: lower layers that all clusters share: none; averaged over the cohort; or frozen (one of
            none, averaged, frozen; default none)
        own: name patterns of the layers that are then not shared; null = the architecture's classifier
            (a list, each item text or null; default null)
        pretraining: rounds of FedAvg first (a whole number >= 0; default 0)
        random_assignment_rounds: rounds after pretraining in which a random part of the clients trains
            each model (a whole number >= 0; default 0)
        restarts: number of starts; the one with the lowest training loss is kept (a whole number >= 1;
            default 1)
        trial: rounds of training for each of several starts before they are compared (a whole number >=
            1; default 10)
        min_init_share: a start is redrawn unless each model is best for at least this share of clients
            (a number >= 0 and <= 1; default 0.0)
        averaging: what is averaged: trained models (option II) or gradients (option I) (one of model,
            gradient; default model)
        denominator: D of gradient averaging: all clients, the cohort, or the cluster's part of it (one
            of all, cohort, cluster; default cohort)
        server_lr: step size of gradient averaging (a number > 0; default 0.1)
    """
    def __init__(self, *, weighting: Literal['uniform', 'samples'] = 'uniform', clusters: int = 2, shared: Literal['none', 'averaged', 'frozen'] = 'none', own: Sequence[str] | None = None, pretraining: int = 0, random_assignment_rounds: int = 0, restarts: int = 1, trial: int = 10, min_init_share: float = 0.0, averaging: Literal['model', 'gradient'] = 'model', denominator: Literal['all', 'cohort', 'cluster'] = 'cohort', server_lr: float = 0.1) -> None: ...

class L2GD(_L2GD):
    """L2GD: a coin decides between a local step (0) and a step towards the mean of all models (1).

    Keywords:
        served: the model served and scored: the personal or the global one (one of personal, global;
            default personal)
        lam: pull towards the mean (a number >= 0; default 0.5)
        p: probability of a step towards the mean (a number > 0 and < 1; default 0.1)
    """
    def __init__(self, *, served: Literal['personal', 'global'] = 'personal', lam: float = 0.5, p: float = 0.1) -> None: ...

class LCFL(_LCFL):
    """LCFL: clients evaluate each other's models on their data; clients with similar losses share a model.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        clusters: number of clusters (a whole number >= 1; default 2)
        warmup: warm-up rounds (a whole number >= 1; default 5)
        distance: what D compares: losses, models (L2), or the warm-up's last updates (1 - cosine) (one
            of loss, model, update; default loss)
        eps: radius of DBSCAN, instead of k-medoids (a number > 0 or null; default null)
        min_samples: neighbors, including itself, of a core client (DBSCAN) (a whole number >= 1;
            default 2)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, clusters: int = 2, warmup: int = 5, distance: Literal['loss', 'model', 'update'] = 'loss', eps: float | None = None, min_samples: int = 2) -> None: ...

class LGFedAvg(_LGFedAvg):
    """LG-FedAvg: clients learn local representations and share the upper layers.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        shared: name patterns of the shared parameters; null = the architecture's upper layers (a list,
            each item text or null; default null)
        fedavg: share of the rounds, the first ones, in which FedAvg trains the whole model (a number >=
            0 and < 1; default 0.0)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', shared: Sequence[str] | None = None, fedavg: float = 0.0) -> None: ...

class LocalOnly(_LocalOnly):
    """Local (SOLO): every client trains its own copy of the initial model and sends nothing.

    Keywords:
        everyone: train all clients in every round, whatever the participation rate (true or false;
            default false)
    """
    def __init__(self, *, everyone: bool = False) -> None: ...

class MTL(_MTL):
    """MTL: every client keeps a personal model that is pulled towards the mean of all (mean-regularized).

    Keywords:
        weighting: weights p_k of the mean: uniform or n_k (one of uniform, samples; default uniform)
        lam: weight of both penalties; null = 10^-f, 1e-6 for LeNet-5 (a number >= 0 or null; default
            null)
    """
    def __init__(self, *, weighting: Literal['uniform', 'samples'] = 'uniform', lam: float | None = None) -> None: ...

class NoSide(_NoSide):
    """NoSide: FedHeN without its side objective; simple clients train the first part of a network, others all.

    Keywords:
        failed: clients that fail: left out of the means, or counted with the model that they received
            (one of exclude, replace; default exclude)
        simple: share of the clients with the simple network, the first ones (a number >= 0 and <= 1;
            default 0.5)
        head_average: clients over which the head of the first exit is averaged: all, or those that
            train it (one of literal, simple_only; default literal)
    """
    def __init__(self, *, failed: Literal['exclude', 'replace'] = 'exclude', simple: float = 0.5, head_average: Literal['literal', 'simple_only'] = 'literal') -> None: ...

class OneShot(_OneShot):
    """One-shot clustering: clients train alone, their models are clustered once, and every cluster runs FedAvg.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        clusters: number of clusters (a whole number >= 1; default 2)
        features: what is clustered: trained models, or coefficients of logistic regressions (one of
            model, logistic; default model)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, clusters: int = 2, features: Literal['model', 'logistic'] = 'model') -> None: ...

class PACFL(_PACFL):
    """PACFL: clients send principal directions of their data; those at small angles share a model.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        linkage: distance between clusters; wpgma = the mean of two rows, regardless of cluster sizes
            (one of single, complete, upgma, wpgma; default wpgma)
        assign: newcomers join the closest cluster within the threshold, or else form a new one
            (attach); or all clients are clustered again (rehc) (one of attach, rehc; default attach)
        beta: clusters up to this many degrees apart are merged; null = the largest gap (a number >= 0
            or null; default null)
        clusters: number of clusters, instead of beta (a whole number >= 1 or null; default null)
        p: singular vectors (a whole number >= 1; default 3)
        signature: singular vectors of all data of a client, or of each label's data (one of whole,
            per_class; default whole)
        input: pixels 0..255, or as the network receives them (one of raw, normalized; default raw)
        proximity: angle between two signatures (one of principal_min, principal_sum, entry_min,
            entry_min_abs, trace, trace_abs, greedy_repo; default principal_min)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, linkage: Literal['single', 'complete', 'upgma', 'wpgma'] = 'wpgma', assign: Literal['attach', 'rehc'] = 'attach', beta: float | None = None, clusters: int | None = None, p: int = 3, signature: Literal['whole', 'per_class'] = 'whole', input: Literal['raw', 'normalized'] = 'raw', proximity: Literal['principal_min', 'principal_sum', 'entry_min', 'entry_min_abs', 'trace', 'trace_abs', 'greedy_repo'] = 'principal_min') -> None: ...

class PAvg(_PAvg):
    """P-Avg: FedAvg for the model that is best after every client has adapted it to its own samples.

    Keywords:
        weighting: weights p_k of the average: n_k or uniform (one of samples, uniform; default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        adaptation: T, a mapping as `training.adaptation`: name (maml or proto), and lr, steps, ... of
            maml (a mapping; default {name: proto})
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, adaptation: Settings | Mapping[str, Any] = ...) -> None: ...

class PCAKMHC(_PCAKMHC):
    """PCA+kM+HC: FLT with principal components of the pixels instead of an auto-encoder.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        case: which clients are averaged: a client and its relatives, or disjoint clusters of relatives
            (one of graph, clusters; default graph)
        clusters: number of clusters in Ward's clustering of the graph; null = its connected components
            (a whole number >= 1 or null; default null)
        k: means in a signature; null = one for each label of the client (a whole number >= 1 or null;
            default 5)
        reducer: embedding of all means before clients are compared (one of none, pca, umap, tsne;
            default none)
        dimensions: dimensions of that embedding (a whole number >= 1; default 2)
        distance: between signatures: of means matched one to one, its square, or of the closest pair
            (one of matching, matching_sq, min_pair; default matching)
        gamma: clients closer than this are related; null = 1 after umap, else 2/3 of the median
            distance (a number > 0 or null; default null)
        absent: absent clients: left out, or counted with their last model (one of omit, stale; default
            omit)
        members: members of Ward's clusters; leaf_order repeats a bug of the code, which takes the i-th
            leaf of the tree for client i (one of right, leaf_order; default right)
        averaging: in_place repeats a bug of the code: clients are averaged one after the other, over
            the means of earlier ones (one of at_once, in_place; default at_once)
        assign: newcomers are related to the clients that took part, or all clients are related again
            (one of attach, all; default attach)
        p: principal components (a whole number >= 1; default 128)
        basis: components of every client's own data, or of the server's (one of per_client, shared;
            default per_client)
        public: the server's images, for basis: shared: a data set under `data`; null = those that the
            partition sets aside (text or null; default null)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, case: Literal['graph', 'clusters'] = 'graph', clusters: int | None = None, k: int | None = 5, reducer: Literal['none', 'pca', 'umap', 'tsne'] = 'none', dimensions: int = 2, distance: Literal['matching', 'matching_sq', 'min_pair'] = 'matching', gamma: float | None = None, absent: Literal['omit', 'stale'] = 'omit', members: Literal['right', 'leaf_order'] = 'right', averaging: Literal['at_once', 'in_place'] = 'at_once', assign: Literal['attach', 'all'] = 'attach', p: int = 128, basis: Literal['per_client', 'shared'] = 'per_client', public: str | None = None) -> None: ...

class PFLDyn(_PFLDyn):
    """PFLDyn: FedDyn for the model that is best after every client has adapted it to its own samples.

    Keywords:
        alpha: weight of the dynamic regularizer (a number > 0; default 0.1)
        weighting: objective: clients count equally, or in proportion to n_k (one of uniform, samples;
            default uniform)
        served: the model served and scored: theta, or the mean of the last cohort's models (one of
            broadcast, mean; default broadcast)
        clip: what training.clip_norm limits: the changed gradient, or that without its term alpha w
            (one of whole, replicate; default whole)
        failed: clients that fail: left out of the mean, or replaced in it by the previous mean (one of
            exclude, replace; default exclude)
        adaptation: T, a mapping as `training.adaptation`: name (maml or proto), and lr, steps, ... of
            maml (a mapping; default {name: proto})
    """
    def __init__(self, *, alpha: float = 0.1, weighting: Literal['uniform', 'samples'] = 'uniform', served: Literal['broadcast', 'mean'] = 'broadcast', clip: Literal['whole', 'replicate'] = 'whole', failed: Literal['exclude', 'replace'] = 'exclude', adaptation: Settings | Mapping[str, Any] = ...) -> None: ...

class PFLScaf(_PFLScaf):
    """PFLScaf: SCAFFOLD for the model that is best after every client has adapted it to its own samples.

    Keywords:
        weighting: weights p_k of clients, and of their control variates in c: uniform or n_k (one of
            uniform, samples; default uniform)
        variate: new control variate: gradient at the received model (I) or from the local steps (II)
            (one of I, II; default II)
        server_lr: server learning rate (a number > 0; default 1.0)
        control_lr: learning rate in the divisor of option II: the rate of the round, or training.lr
            (one of current, initial; default current)
        clip: what training.clip_norm limits: the gradient, or the corrected gradient as a whole (one of
            gradient, whole; default gradient)
        adaptation: T, a mapping as `training.adaptation`: name (maml or proto), and lr, steps, ... of
            maml (a mapping; default {name: proto})
    """
    def __init__(self, *, weighting: Literal['uniform', 'samples'] = 'uniform', variate: Literal['I', 'II'] = 'II', server_lr: float = 1.0, control_lr: Literal['current', 'initial'] = 'current', clip: Literal['gradient', 'whole'] = 'gradient', adaptation: Settings | Mapping[str, Any] = ...) -> None: ...

class PFedMe(_PFedMe):
    """pFedMe: each client's model stays near the global one, which moves along gradients of Moreau envelopes.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: weight of the mean in the next model (a number > 0; default 1.0)
        served: the model served and scored: the personal or the global one (one of personal, global;
            default personal)
        lam: pull of the personal towards the global model (a number >= 0; default 15.0)
        inner_steps: steps of the personal model on every batch (a whole number >= 1; default 5)
        personal_lr: learning rate of the personal model; null = as the global one (a number > 0 or
            null; default 0.09)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, served: Literal['personal', 'global'] = 'personal', lam: float = 15.0, inner_steps: int = 5, personal_lr: float | None = 0.09) -> None: ...

class PerFedAvg(_PerFedAvg):
    """Per-FedAvg: learns a model that serves every client well after one gradient step on its own data.

    Keywords:
        weighting: weights p_k of the average: n_k or uniform (one of samples, uniform; default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        alpha: step size of the adaptation (a number >= 0; default 0.01)
        beta: step size of the meta-gradient; null = the client learning rate (a number > 0 or null;
            default null)
        order: second derivatives in the meta-gradient: none, by differences of gradients, or exact (one
            of first, hessian_free, second; default first)
        delta: half the distance of the two gradients of hessian_free (a number > 0; default 0.001)
        adaptation: gradient steps on a client's own data before it is served; in training with order:
            second only (a whole number >= 0; default 1)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, alpha: float = 0.01, beta: float | None = None, order: Literal['first', 'hessian_free', 'second'] = 'first', delta: float = 0.001, adaptation: int = 1) -> None: ...

class PropFair(_PropFair):
    """PropFair: clients maximize log(M - loss), so that no one gains at a greater relative cost to others.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        baseline: the loss with utility 0 (a number > 0; default 5.0)
        eps: distance to M below which the log becomes a line (a number > 0; default 0.2)
        beyond: slope of the line: 1/M (plain) or 1/eps (huber) (one of plain, huber; default plain)
        applied: where fairness is applied: in the clients' loss, or in the weights of the average (one
            of loss, weights; default loss)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, baseline: float = 5.0, eps: float = 0.2, beyond: Literal['plain', 'huber'] = 'plain', applied: Literal['loss', 'weights'] = 'loss') -> None: ...

class QFedAvg(_QFedAvg):
    """q-FedAvg: clients with a higher loss count more, and an estimated Lipschitz constant scales the step.

    Keywords:
        weighting: weights of D_k and h_k in their sums: n_k or uniform (one of samples, uniform;
            default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        q: fairness: the power of the losses (a number >= 0; default 0.1)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, q: float = 0.1) -> None: ...

class QFedSGD(_QFedSGD):
    """q-FedSGD: q-FedAvg whose clients send one gradient step on all their data.

    Keywords:
        weighting: weights of D_k and h_k in their sums: n_k or uniform (one of samples, uniform;
            default uniform)
        server_lr: server learning rate (a number > 0; default 1.0)
        q: fairness: the power of the losses (a number >= 0; default 0.1)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'uniform', server_lr: float = 1.0, q: float = 0.1) -> None: ...

class Scaffold(_Scaffold):
    """SCAFFOLD: control variates cancel the drift of clients towards their own optimum.

    Keywords:
        weighting: weights p_k of clients, and of their control variates in c: uniform or n_k (one of
            uniform, samples; default uniform)
        variate: new control variate: gradient at the received model (I) or from the local steps (II)
            (one of I, II; default II)
        server_lr: server learning rate (a number > 0; default 1.0)
        control_lr: learning rate in the divisor of option II: the rate of the round, or training.lr
            (one of current, initial; default current)
        clip: what training.clip_norm limits: the gradient, or the corrected gradient as a whole (one of
            gradient, whole; default gradient)
    """
    def __init__(self, *, weighting: Literal['uniform', 'samples'] = 'uniform', variate: Literal['I', 'II'] = 'II', server_lr: float = 1.0, control_lr: Literal['current', 'initial'] = 'current', clip: Literal['gradient', 'whole'] = 'gradient') -> None: ...

class SuPerFed(_SuPerFed):
    """SuPerFed: a global and a local model per client, trained together so that all mixtures of both are good.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        served: the model served and scored: the personal or the global one (one of personal, global;
            default personal)
        mixing: one lambda for the model in every step (MM), or one per layer (LM) (one of model, layer;
            default model)
        mu: weight of the proximal term ||w_f - w_t||^2 (a number >= 0; default 0.01)
        nu: weight of cos^2(w_f, w_l); null = 1 for MM, 2 for LM (a number >= 0 or null; default null)
        start: share of the rounds before mixing starts; null = 0.4 for MM, 0.6 for LM (a number >= 0
            and < 1 or null; default null)
        prox: the proximal term: the squared norm, or the sum over tensors of norms (one of sq,
            official; default sq)
        aggregation: parameters that are averaged: all, or those named weight, while the others are
            reset (one of all, official; default all)
        lam: lambda of the model that is served: of 0, 0.1, .. 1, the one with the lowest loss on held-
            out samples; 0.5; or the one with the lowest loss on test samples, which is optimistic (one
            of validated, fixed, oracle; default validated)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, served: Literal['personal', 'global'] = 'personal', mixing: Literal['model', 'layer'] = 'model', mu: float = 0.01, nu: float | None = None, start: float | None = None, prox: Literal['sq', 'official'] = 'sq', aggregation: Literal['all', 'official'] = 'all', lam: Literal['validated', 'fixed', 'oracle'] = 'validated') -> None: ...

class SubFedAvgHy(_SubFedAvgHy):
    """Sub-FedAvg (Hy): clients prune channels of convolutions, and single weights of dense layers.

    Keywords:
        rate: share of the kept weights of a dense layer that a step of pruning drops; 0 = only channels
            (a number >= 0 and < 1; default 0.1)
        target: share of all parameters at which the pruning of dense layers ends; 0 = only channels (a
            number >= 0 and < 1; default 0.5)
        threshold: least accuracy of the smaller network, 0 to 1; above 1 = no pruning (a number >= 0;
            default 0.5)
        distance: least distance between the masks of dense layers after the first and the last epoch;
            above 1 = no pruning of dense layers (a number >= 0; default 0.0005)
        gate: samples that measure this accuracy: held-out, training or test samples of the client; with
            test, training sees the test set (one of selection, train, test; default selection)
        channel_rate: position, as a share, of the largest |gamma| that goes; 0 = no channels are
            removed (a number >= 0 and < 1; default 0.45)
        channel_distance: least distance between the channels kept after the first and the last epoch;
            above 1 = no channels are removed (a number >= 0; default 0.05)
        floors: least channels of each layer; null = half of its width, rounded up (a list, each item a
            whole number >= 1 or null; default null)
        l1: weight of |gamma| in the loss (a number >= 0; default 0.0)
    """
    def __init__(self, *, rate: float = 0.1, target: float = 0.5, threshold: float = 0.5, distance: float = 0.0005, gate: Literal['selection', 'train', 'test'] = 'selection', channel_rate: float = 0.45, channel_distance: float = 0.05, floors: Sequence[int] | None = None, l1: float = 0.0) -> None: ...

class SubFedAvgUn(_SubFedAvgUn):
    """Sub-FedAvg (Un): clients prune single weights; the server averages each over the clients that keep it.

    Keywords:
        rate: share of the kept weights of a tensor that a step of pruning drops (a number > 0 and < 1;
            default 0.1)
        target: share of all parameters at which pruning ends; 0 = no pruning (a number >= 0 and < 1;
            default 0.5)
        threshold: least accuracy of the smaller network, 0 to 1; above 1 = no pruning (a number >= 0;
            default 0.5)
        distance: least distance between the masks after the first and the last epoch; above 1 = no
            pruning (a number >= 0; default 0.0001)
        gate: samples that measure this accuracy: held-out, training or test samples of the client; with
            test, training sees the test set (one of selection, train, test; default selection)
    """
    def __init__(self, *, rate: float = 0.1, target: float = 0.5, threshold: float = 0.5, distance: float = 0.0001, gate: Literal['selection', 'train', 'test'] = 'selection') -> None: ...

class TERM(_TERM):
    """TERM: weights grow exponentially with the loss: the tilt t leads from the mean loss to the maximum.

    Keywords:
        weighting: weights p_k: n_k or uniform (one of samples, uniform; default samples)
        server_lr: server learning rate (a number > 0; default 1.0)
        t: tilt (a number; default 0.1)
    """
    def __init__(self, *, weighting: Literal['samples', 'uniform'] = 'samples', server_lr: float = 1.0, t: float = 0.1) -> None: ...
