"""The public names of fedflow, which `fedflow` finds here when they are used; docs/api.md explains them."""

from fedflow import heterogeneity as heterogeneity
from fedflow.data.examples import Examples as Examples
from fedflow.data.files import DataColumn as DataColumn
from fedflow.data.files import RawData as RawData
from fedflow.data.generated import load_generated as load_generated
from fedflow.data.prepared import Dataset as Dataset
from fedflow.data.sources import Source as Source
from fedflow.data.sources import data_root as data_root
from fedflow.data.sources import register_source as register_source
from fedflow.data.sources import source as source
from fedflow.devices import flower as flower
from fedflow.errors import BadInput as BadInput
from fedflow.errors import FedflowError as FedflowError
from fedflow.front.arrays import dataset as dataset
from fedflow.front.inputs import scheme as scheme
from fedflow.front.result import Comparison as Comparison
from fedflow.front.result import Result as Result
from fedflow.front.result import compare as compare
from fedflow.front.runner import run as run
from fedflow.local.client import Client as Client
from fedflow.local.client import Update as Update
from fedflow.local.extensions.adaptation import Adaptation as Adaptation
from fedflow.local.extensions.curriculum import Curriculum as Curriculum
from fedflow.local.extensions.extension import Drawing as Drawing
from fedflow.local.extensions.extension import Extension as Extension
from fedflow.local.extensions.extension import Host as Host
from fedflow.local.extensions.extension import Losses as Losses
from fedflow.local.extensions.extension import register as _extension
from fedflow.local.extensions.label_flip import LabelFlip as LabelFlip
from fedflow.local.extensions.objective import Objective as Objective
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Pull as Pull
from fedflow.local.samples import Batch as Batch
from fedflow.local.schedule import Extra as Extra
from fedflow.local.schedule import Schedule as Schedule
from fedflow.local.trainer import Trainer as Trainer
from fedflow.local.wire import Size as Size
from fedflow.methods.asynchronous.cc_fedadagrad import CCFedAdagrad as CCFedAdagrad
from fedflow.methods.asynchronous.cc_fedadam import CCFedAdam as CCFedAdam
from fedflow.methods.asynchronous.cc_fedams import CCFedAMS as CCFedAMS
from fedflow.methods.asynchronous.fedbuff import FedBuff as FedBuff
from fedflow.methods.asynchronous.fedeff import FedEff as FedEff
from fedflow.methods.averaging._averaging import Averaging as Averaging
from fedflow.methods.averaging.fedadagrad import FedAdagrad as FedAdagrad
from fedflow.methods.averaging.fedadam import FedAdam as FedAdam
from fedflow.methods.averaging.fedavg import FedAvg as FedAvg
from fedflow.methods.averaging.fedavgm import FedAvgM as FedAvgM
from fedflow.methods.averaging.feddyn import FedDyn as FedDyn
from fedflow.methods.averaging.fednova import FedNova as FedNova
from fedflow.methods.averaging.fedprox import FedProx as FedProx
from fedflow.methods.averaging.fedprox_as_published import FedProxAsPublished as FedProxAsPublished
from fedflow.methods.averaging.fedsgd import FedSGD as FedSGD
from fedflow.methods.averaging.fedsplit import FedSplit as FedSplit
from fedflow.methods.averaging.fedyogi import FedYogi as FedYogi
from fedflow.methods.averaging.scaffold import Scaffold as Scaffold
from fedflow.methods.clustered.cfl import CFL as CFL
from fedflow.methods.clustered.fedac import FedAC as FedAC
from fedflow.methods.clustered.fedcluster import FedCluster as FedCluster
from fedflow.methods.clustered.fedsc import FedSC as FedSC
from fedflow.methods.clustered.fesem import FeSEM as FeSEM
from fedflow.methods.clustered.flis_dc import FLISDC as FLISDC
from fedflow.methods.clustered.flis_hc import FLISHC as FLISHC
from fedflow.methods.clustered.flt import FLT as FLT
from fedflow.methods.clustered.ifca import IFCA as IFCA
from fedflow.methods.clustered.ifca_as_published import IFCAAsPublished as IFCAAsPublished
from fedflow.methods.clustered.lcfl import LCFL as LCFL
from fedflow.methods.clustered.one_shot import OneShot as OneShot
from fedflow.methods.clustered.pacfl import PACFL as PACFL
from fedflow.methods.clustered.pca_km_hc import PCAKMHC as PCAKMHC
from fedflow.methods.fairness._weighing import Weighing as Weighing
from fedflow.methods.fairness.aaggff_d import AAggFFD as AAggFFD
from fedflow.methods.fairness.aaggff_d_as_published import AAggFFDAsPublished as AAggFFDAsPublished
from fedflow.methods.fairness.aaggff_s import AAggFFS as AAggFFS
from fedflow.methods.fairness.aaggff_s_as_published import AAggFFSAsPublished as AAggFFSAsPublished
from fedflow.methods.fairness.afl import AFL as AFL
from fedflow.methods.fairness.fedmgda import FedMGDA as FedMGDA
from fedflow.methods.fairness.propfair import PropFair as PropFair
from fedflow.methods.fairness.qfedavg import QFedAvg as QFedAvg
from fedflow.methods.fairness.qfedsgd import QFedSGD as QFedSGD
from fedflow.methods.fairness.term import TERM as TERM
from fedflow.methods.generative.fedcgan import FedCGAN as FedCGAN
from fedflow.methods.generative.fedcvae import FedCVAE as FedCVAE
from fedflow.methods.generative.fedevg import FedEvg as FedEvg
from fedflow.methods.method import Ability as Ability
from fedflow.methods.method import Cohort as Cohort
from fedflow.methods.method import Conditions as Conditions
from fedflow.methods.method import Diagnostics as Diagnostics
from fedflow.methods.method import GlobalModel as GlobalModel
from fedflow.methods.method import Message as Message
from fedflow.methods.method import Method as Method
from fedflow.methods.method import Passes as Passes
from fedflow.methods.method import Round as Round
from fedflow.methods.method import ServerState as ServerState
from fedflow.methods.personal.apfl import APFL as APFL
from fedflow.methods.personal.apfl_as_published import APFLAsPublished as APFLAsPublished
from fedflow.methods.personal.ditto import Ditto as Ditto
from fedflow.methods.personal.ditto_as_published import DittoAsPublished as DittoAsPublished
from fedflow.methods.personal.fedbn import FedBN as FedBN
from fedflow.methods.personal.fedper import FedPer as FedPer
from fedflow.methods.personal.fedrep import FedRep as FedRep
from fedflow.methods.personal.l2gd import L2GD as L2GD
from fedflow.methods.personal.lg_fedavg import LGFedAvg as LGFedAvg
from fedflow.methods.personal.local import LocalOnly as LocalOnly
from fedflow.methods.personal.mtl import MTL as MTL
from fedflow.methods.personal.pavg import PAvg as PAvg
from fedflow.methods.personal.perfedavg import PerFedAvg as PerFedAvg
from fedflow.methods.personal.pfedme import PFedMe as PFedMe
from fedflow.methods.personal.pfldyn import PFLDyn as PFLDyn
from fedflow.methods.personal.pflscaf import PFLScaf as PFLScaf
from fedflow.methods.personal.superfed import SuPerFed as SuPerFed
from fedflow.methods.protocols import Adapting as Adapting
from fedflow.methods.protocols import Asynchronous as Asynchronous
from fedflow.methods.protocols import Clustered as Clustered
from fedflow.methods.protocols import Cyclic as Cyclic
from fedflow.methods.protocols import Dissimilarity as Dissimilarity
from fedflow.methods.protocols import Generative as Generative
from fedflow.methods.protocols import Images as Images
from fedflow.methods.protocols import Leveled as Leveled
from fedflow.methods.protocols import Mixing as Mixing
from fedflow.methods.protocols import Noisy as Noisy
from fedflow.methods.protocols import Onboarding as Onboarding
from fedflow.methods.protocols import Phased as Phased
from fedflow.methods.protocols import Pretrained as Pretrained
from fedflow.methods.protocols import Pruning as Pruning
from fedflow.methods.protocols import Published as Published
from fedflow.methods.protocols import Recording as Recording
from fedflow.methods.protocols import Sampling as Sampling
from fedflow.methods.protocols import Selecting as Selecting
from fedflow.methods.protocols import ServerData as ServerData
from fedflow.methods.protocols import Serving as Serving
from fedflow.methods.protocols import Specialized as Specialized
from fedflow.methods.protocols import VariableEpochs as VariableEpochs
from fedflow.methods.protocols import Weighted as Weighted
from fedflow.methods.registry import register as _method
from fedflow.methods.subnetworks._levels import Levels as Levels
from fedflow.methods.subnetworks.decouple import Decouple as Decouple
from fedflow.methods.subnetworks.fedhen import FedHeN as FedHeN
from fedflow.methods.subnetworks.heterofl import HeteroFL as HeteroFL
from fedflow.methods.subnetworks.noside import NoSide as NoSide
from fedflow.methods.subnetworks.subfedavg_hy import SubFedAvgHy as SubFedAvgHy
from fedflow.methods.subnetworks.subfedavg_un import SubFedAvgUn as SubFedAvgUn
from fedflow.methods.wrapped import HostState as HostState
from fedflow.methods.wrapped import Wrapped as Wrapped
from fedflow.metrics import predictions as predictions
from fedflow.models.exits import TwoExits as TwoExits
from fedflow.models.flat import FlatModel as FlatModel
from fedflow.models.registry import register_network as register_network
from fedflow.partition import PartitionParams
from fedflow.partition.acid import Acid
from fedflow.partition.after.difficulty import Difficulty as Difficulty
from fedflow.partition.after.feature_noise import FeatureNoise as FeatureNoise
from fedflow.partition.after.label_noise import LabelNoise as LabelNoise
from fedflow.partition.after.transforms import Transforms as Transforms
from fedflow.partition.attributes import Attributes
from fedflow.partition.dirichlet import Dirichlet
from fedflow.partition.dirichlet_clients import DirichletClients
from fedflow.partition.dirichlet_disjoint import DirichletDisjoint
from fedflow.partition.dirichlet_exact import DirichletExact
from fedflow.partition.domains import Domains
from fedflow.partition.given import Given
from fedflow.partition.iid import IID
from fedflow.partition.kway import KWay
from fedflow.partition.label_groups import LabelGroups
from fedflow.partition.label_shares import LabelShares
from fedflow.partition.label_skew import LabelSkew
from fedflow.partition.natural import Natural
from fedflow.partition.noniid1 import NonIID1
from fedflow.partition.scheme import Samples as Samples
from fedflow.partition.scheme import Scheme as Scheme
from fedflow.partition.scheme import Split as Split
from fedflow.partition.scheme import register as _scheme
from fedflow.partition.shards import Shards
from fedflow.partition.structured import Structured
from fedflow.partition.structured_as_published import StructuredAsPublished
from fedflow.partition.super_clusters import SuperClusters
from fedflow.pictures import drawing as drawing
from fedflow.procedures import coresets as coresets
from fedflow.procedures import online as online
from fedflow.procedures.interface import Column as Column
from fedflow.procedures.interface import End as End
from fedflow.procedures.interface import Findings as Findings
from fedflow.procedures.interface import Inputs as Inputs
from fedflow.procedures.interface import Procedure as Procedure
from fedflow.procedures.interface import Row as Row
from fedflow.procedures.interface import State as State
from fedflow.procedures.interface import World as World
from fedflow.procedures.interface import register as _procedure
from fedflow.seeding import generator as generator
from fedflow.settings import Settings as Settings
from fedflow.settings import option as option
from fedflow.simulation.extensions.backdoor import Backdoor as Backdoor
from fedflow.simulation.extensions.client_curriculum import ClientCurriculum as ClientCurriculum
from fedflow.simulation.extensions.extension import RunExtension as RunExtension
from fedflow.simulation.extensions.extension import register_run_extension as register_run_extension
from fedflow.simulation.extensions.recording import load_vectors as load_vectors
from fedflow.simulation.outcome import RoundReport as RoundReport
from fedflow.simulation.outcome import RunFindings as RunFindings
from fedflow.simulation.timing import Timing as Timing
from fedflow.simulation.updates.alie import ALIE as ALIE
from fedflow.simulation.updates.bulyan import Bulyan as Bulyan
from fedflow.simulation.updates.centered_clipping import CenteredClipping as CenteredClipping
from fedflow.simulation.updates.clip import Clip as Clip
from fedflow.simulation.updates.gaussian_attack import GaussianAttack as GaussianAttack
from fedflow.simulation.updates.geometric_median import GeometricMedian as GeometricMedian
from fedflow.simulation.updates.inner_product import InnerProduct as InnerProduct
from fedflow.simulation.updates.krum import Krum as Krum
from fedflow.simulation.updates.median import Median as Median
from fedflow.simulation.updates.norm_bound import NormBound as NormBound
from fedflow.simulation.updates.privacy import Privacy as Privacy
from fedflow.simulation.updates.qsgd import QSGD as QSGD
from fedflow.simulation.updates.random_k import RandomK as RandomK
from fedflow.simulation.updates.secure import Secure as Secure
from fedflow.simulation.updates.sign import Sign as Sign
from fedflow.simulation.updates.sign_flip import SignFlip as SignFlip
from fedflow.simulation.updates.step import Arrived as Arrived
from fedflow.simulation.updates.step import Changed as Changed
from fedflow.simulation.updates.step import Incoming as Incoming
from fedflow.simulation.updates.step import Outgoing as Outgoing
from fedflow.simulation.updates.step import Sent as Sent
from fedflow.simulation.updates.step import Served as Served
from fedflow.simulation.updates.step import Shared as Shared
from fedflow.simulation.updates.step import UpdateStep as UpdateStep
from fedflow.simulation.updates.step import register as _update_step
from fedflow.simulation.updates.top_k import TopK as TopK
from fedflow.simulation.updates.trimmed_mean import TrimmedMean as TrimmedMean
from fedflow.tracking.models import export_model as export_model
from fedflow.tracking.models import import_model as import_model
from fedflow.tracking.models import load_model as load_model

__version__: str

Training = LocalTraining
register_method = _method
register_scheme = _scheme
register_procedure = _procedure
register_extension = _extension
register_update_step = _update_step

# Functions with the keywords of both, which make a `PartitionParams`.
class acid(Acid, PartitionParams): ...
class attributes(Attributes, PartitionParams): ...
class dirichlet(Dirichlet, PartitionParams): ...
class dirichlet_clients(DirichletClients, PartitionParams): ...
class dirichlet_disjoint(DirichletDisjoint, PartitionParams): ...
class dirichlet_exact(DirichletExact, PartitionParams): ...
class domains(Domains, PartitionParams): ...
class given(Given, PartitionParams): ...
class iid(IID, PartitionParams): ...
class kway(KWay, PartitionParams): ...
class label_groups(LabelGroups, PartitionParams): ...
class label_shares(LabelShares, PartitionParams): ...
class label_skew(LabelSkew, PartitionParams): ...
class natural(Natural, PartitionParams): ...
class noniid1(NonIID1, PartitionParams): ...
class shards(Shards, PartitionParams): ...
class structured(Structured, PartitionParams): ...
class structured_as_published(StructuredAsPublished, PartitionParams): ...
class super_clusters(SuperClusters, PartitionParams): ...
