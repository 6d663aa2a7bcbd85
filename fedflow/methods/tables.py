"""Methods of each published table."""

_PERSONAL = "scaffold lg_fedavg fedper apfl pfedme ditto fedrep"
_FAIR = "fedavg qfedavg term fedmgda propfair"
_TARGET = "fedavg fedprox fednova scaffold lg_fedavg perfedavg ifca"
_CLUSTERED = f"local {_TARGET}"

# Methods by paper and tables. A global method with + was fine-tuned before scoring (tuned_accuracy).
TABLES: dict[tuple[str, str], str] = {
    (
        "FLIS and PACFL (Vahidian, Morafah et al.; Morafah's thesis)",
        "Tables 3.1, 3.2, 3.8 to 3.10 (label skew 20 % and 30 %, Dir(0.1))",
    ): f"{_CLUSTERED} cfl flis_dc flis_hc pacfl",
    (
        "FLIS and PACFL",
        "Tables 3.3 to 3.5, 3.13 to 3.15 (rounds and traffic to a target)",
    ): f"{_TARGET} cfl flis_hc pacfl",
    ("FLIS and PACFL", "Tables 3.6, 3.12 (newcomers)"): f"{_CLUSTERED} flis_dc flis_hc pacfl",
    ("PACFL", "Tables 3.11, 5.6 (MIX-4)"): f"{_CLUSTERED} cfl pacfl",
    ("Morafah's thesis", "Table 5.4 (SC-NIID, SC-Dir; global methods with +)"): _CLUSTERED,
    (
        "FLT (Jamali-Rad, Abdizadeh, Singh)",
        "Tables 1, 2 (Scenarios 1, 2)",
    ): "fedavg local pca_km_hc fesem flt",
    ("FLT", "Table 3 (FEMNIST)"): "fedavg pca_km_hc ifca cfl fesem flt",
    ("FLT", "Table 4 (Scenario 4)"): "fedavg pca_km_hc fesem flt",
    ("FLT", "Table 5 (ablation)"): "fesem flt",
    ("SuPerFed (Hahn, Jeong, Lee)", "Tables 2.3 to 2.6"): f"fedavg fedprox {_PERSONAL} superfed",
    ("AAggFF (Hahn et al.)", "Tables 3.6, 3.8 (cross-silo)"): f"{_FAIR} afl aaggff_s",
    ("AAggFF", "Tables 3.7, 3.9 (cross-device)"): f"{_FAIR} aaggff_d",
    ("AAggFF", "Table 3.10 (plug and play)"): "fedavg fedprox fedadam fedyogi fedadagrad aaggff_s aaggff_d",
    ("FedDyn (Acar et al.)", "Tables 2.1 to 2.3, A.2 to A.4"): "fedavg fedprox scaffold feddyn",
    ("PFLDyn (Acar et al.)", "Tables 3.1, 3.2, A.5 to A.7"): "perfedavg pavg pfldyn pflscaf",
    ("FedHeN (Acar, Saligrama)", "Tables 4.1, 4.2"): "fedhen noside decouple",
    ("curricula (Vahidian et al.)", "Tables 2.2 to 2.5"): "fedavg fedprox fednova scaffold",
    (
        "Sub-FedAvg (Vahidian, Morafah, Lin)",
        "Tables 4.1 to 4.3",
    ): "local fedavg fedprox mtl lg_fedavg subfedavg_un subfedavg_hy",
    ("IFCA (Ghosh et al.)", "Tables 1, 2 (rotated MNIST and CIFAR-10)"): "local fedavg ifca",
    ("IFCA", "Table 3 (FEMNIST)"): "local fedavg ifca one_shot",
}


def published_in(method: str) -> list[str]:
    """Tables that contain the method, such as ``FLT, Table 5 (ablation)``."""
    return [f"{paper}, {tables}" for (paper, tables), names in TABLES.items() if method in names.split()]
