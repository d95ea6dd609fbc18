"""What is wrong in deploy/kubernetes, found by reading alone: names, ports, paths, volumes, times and sizes that must
agree within the files and with the server. check_deploy.py uses it. No cluster is asked.
"""

import re
from pathlib import Path

import yaml

API_VERSIONS = {"Deployment": "apps/v1", "Service": "v1", "PersistentVolumeClaim": "v1",
                "PodDisruptionBudget": "policy/v1", "NetworkPolicy": "networking.k8s.io/v1",
                "ServiceMonitor": "monitoring.coreos.com/v1"}
STARTUP_SECONDS = 20 * 60
STORE_SECONDS = 10  # the server gives up writing its store after that long without a block (docs/serving.md)
EVENT_PORTS = {"kv-events": "SLUICE_KV_EVENTS", "kv-replay": "SLUICE_KV_EVENTS_REPLAY"}
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def size_of(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text)).groups()
    return int(number) * UNITS[unit]


def read(directory):
    """(name of the file, document) of each document."""
    for path in sorted(Path(directory).rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(directory)), document


class Manifests:
    def __init__(self, directory, routes):
        self.routes = routes
        self.all = list(read(directory))
        self.pod = self.one("Deployment")["spec"]["template"]
        self.container = self.pod["spec"]["containers"][0]
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.values = {entry["name"]: entry.get("value") for entry in self.container["env"]}

    def of_kind(self, kind):
        return [document for _, document in self.all if document["kind"] == kind]

    def one(self, kind):
        return self.of_kind(kind)[0]

    def findings(self):
        for name, document in self.all:
            if API_VERSIONS.get(document["kind"]) != document["apiVersion"]:
                yield f"{name}: {document['kind']} of {document['apiVersion']} is not known here"
        for part in (self.labels, self.probes, self.ends, self.sizes, self.volumes, self.ports_of_others, self.secrets):
            yield from part()

    def labels(self):
        labels = self.pod["metadata"]["labels"]
        selectors = {"Deployment": self.one("Deployment")["spec"]["selector"]["matchLabels"],
                     "Service": self.one("Service")["spec"]["selector"],
                     "PodDisruptionBudget": self.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
                     "NetworkPolicy": self.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]}
        for kind, selector in selectors.items():
            if not selector.items() <= labels.items():
                yield f"{kind}: it selects {selector}, and the pods have {labels}"
        labels = self.one("Service")["metadata"]["labels"]
        for monitor in self.of_kind("ServiceMonitor"):
            if not monitor["spec"]["selector"]["matchLabels"].items() <= labels.items():
                yield "ServiceMonitor: it selects no Service"

    def probes(self):
        for kind, want in (("startupProbe", "/health"), ("readinessProbe", "/health"), ("livenessProbe", "/live")):
            asked = self.container[kind]["httpGet"]
            if asked["path"] != want or want not in self.routes:
                yield f"Deployment: {kind} asks {asked['path']}, want {want}; without a key are {sorted(self.routes)}"
            if asked["port"] not in self.ports:
                yield f"Deployment: {kind} asks the port {asked['port']}, and the pods have {sorted(self.ports)}"
        startup = self.container["startupProbe"]
        if startup["periodSeconds"] * startup["failureThreshold"] < STARTUP_SECONDS:
            yield f"Deployment: startupProbe lasts less than {STARTUP_SECONDS} s"
        if str(self.ports["http"]) != self.values["SLUICE_PORT"]:
            yield f"Deployment: the port http is {self.ports['http']}, and SLUICE_PORT {self.values['SLUICE_PORT']}"

    def ends(self):
        sleep = self.container["lifecycle"]["preStop"]["sleep"]["seconds"]
        needed = sleep + int(self.values["SLUICE_DRAIN_TIMEOUT"]) + STORE_SECONDS
        if self.pod["spec"]["terminationGracePeriodSeconds"] < needed:
            yield f"Deployment: terminationGracePeriodSeconds is below {needed}: preStop, the drain and the store"
        if self.one("PodDisruptionBudget")["spec"].get("maxUnavailable") != 1:
            yield "PodDisruptionBudget: maxUnavailable is not 1"

    def sizes(self):
        resources = self.container["resources"]
        for name in ("memory", "nvidia.com/gpu"):
            if resources["requests"][name] != resources["limits"][name]:
                yield f"Deployment: {name} is requested and limited differently"
        pinned = size_of(self.values["SLUICE_KV_HOST_BYTES"])
        shared = sum(size_of(volume["emptyDir"]["sizeLimit"]) for volume in self.pod["spec"]["volumes"]
                     if volume.get("emptyDir", {}).get("medium") == "Memory")
        if size_of(resources["requests"]["memory"]) < pinned + shared + 8 * UNITS["Gi"]:
            yield "Deployment: memory is below SLUICE_KV_HOST_BYTES, /dev/shm and 8 GiB"
        claims = {claim["metadata"]["name"]: claim["spec"]["resources"]["requests"]["storage"]
                  for claim in self.of_kind("PersistentVolumeClaim")}
        if size_of(self.values["SLUICE_KV_STORE_BYTES"]) > size_of(claims["sluice-kv"]):
            yield "Deployment: SLUICE_KV_STORE_BYTES is larger than the claim sluice-kv"

    def volumes(self):
        volumes = {volume["name"]: volume for volume in self.pod["spec"]["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in self.container["volumeMounts"]}
        if mounts.keys() != volumes.keys():
            yield f"Deployment: it mounts {sorted(mounts)} of the volumes {sorted(volumes)}"
        if self.values["SLUICE_KV_STORE"] not in mounts.values():
            yield "Deployment: SLUICE_KV_STORE is no volume"
        claims = {claim["metadata"]["name"] for claim in self.of_kind("PersistentVolumeClaim")}
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in claims:
                yield f"Deployment: no file has the claim {claim}"

    def ports_of_others(self):
        for port in self.one("Service")["spec"]["ports"]:
            if port["targetPort"] not in self.ports:
                yield f"Service: the pods have no port {port['targetPort']}"
        for rule in self.one("NetworkPolicy")["spec"]["ingress"]:
            for port in rule["ports"]:
                if port["port"] not in self.ports:
                    yield f"NetworkPolicy: the pods have no port {port['port']}"
                if port["port"] in EVENT_PORTS and not rule.get("from"):
                    yield f"NetworkPolicy: everyone may read {port['port']}, which asks for no key"
        for port, variable in EVENT_PORTS.items():
            if self.values[variable] != f"tcp://*:{self.ports.get(port)}":
                yield f"Deployment: {variable} is {self.values[variable]}, and {port} {self.ports.get(port)}"
        names = {port["name"] for port in self.one("Service")["spec"]["ports"]}
        for endpoint in (end for monitor in self.of_kind("ServiceMonitor") for end in monitor["spec"]["endpoints"]):
            if endpoint["port"] not in names or endpoint["path"] != "/metrics":
                yield f"ServiceMonitor: it reads {endpoint['path']} at the port {endpoint['port']}"

    def secrets(self):
        used = [entry["valueFrom"]["secretKeyRef"] for entry in self.container["env"] if "valueFrom" in entry]
        for endpoint in (end for monitor in self.of_kind("ServiceMonitor") for end in monitor["spec"]["endpoints"]):
            if endpoint["authorization"]["credentials"] not in used:
                yield "ServiceMonitor: its secret is not the Deployment's"

    def unlike_llm_d(self, values):
        """What the values of llm-d's chart have of the pods, which must be as it is here."""
        router = values["router"]
        plugins = yaml.safe_load(router["epp"]["pluginsCustomConfig"][router["epp"]["pluginsConfigFile"]])
        by_type = {plugin["type"]: plugin.get("parameters", {}) for plugin in plugins["plugins"]}
        for ref in re.findall(r"'(?:pluginRef|prefixMatchInfoProducerName)': '([^']*)'", str(plugins)):
            if ref not in by_type:
                yield f"llm-d.yaml: no plugin {ref}"
        producer, service = by_type["precise-prefix-cache-producer"], self.one("Service")
        url = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
        for what, ours, want in (
                ("model", by_type["token-producer"]["modelName"], self.values["SLUICE_MODEL"]),
                ("address", by_type["token-producer"]["vllm"]["url"], url),
                ("block size", str(producer["tokenProcessorConfig"]["blockSizeTokens"]),
                 self.values["SLUICE_BLOCK_SIZE"]),
                ("port of events", producer["kvEventsConfig"]["podDiscoveryConfig"]["socketPort"],
                 self.ports["kv-events"]),
                ("port", router["modelServers"]["targetPorts"][0]["number"], self.ports["http"]),
                ("label", router["modelServers"]["matchLabels"], self.pod["metadata"]["labels"])):
            if ours != want:
                yield f"llm-d.yaml: the {what} is {ours}, and that of the pods {want}"
