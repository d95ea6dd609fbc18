"""check_deploy.py on the files of deploy/, and on copies with one error each, which it must find."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import yaml  # noqa: F401
except ImportError:
    yaml = None

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/check_deploy.py"
POD = "kubernetes/deployment.yaml"
# File, what is replaced in it, by what, and what the finding must say.
PLANTED = [
    (POD, "SLUICE_DRAIN_TIMEOUT", "SLUICE_DRAIN_SECONDS", "no option is read from SLUICE_DRAIN_SECONDS"),
    (POD, "path: /live", "path: /alive", "livenessProbe asks /alive"),
    (POD, "path: /health, port: http", "path: /health, port: web", "Probe asks the port web"),
    (POD, "failureThreshold: 240", "failureThreshold: 100", "startupProbe lasts less than 1200 s"),
    (POD, "containerPort: 8000", "containerPort: 8080", "the port http is 8080"),
    (POD, "PeriodSeconds: 150", "PeriodSeconds: 120", "terminationGracePeriodSeconds is below 135"),
    (POD, "value: 32G", "value: 40G", "memory is below SLUICE_KV_HOST_BYTES"),
    (POD, "value: /kv}", "value: /store}", "SLUICE_KV_STORE is no volume"),
    (POD, "value: 180G", "value: 300G", "SLUICE_KV_STORE_BYTES is larger"),
    (POD, "claimName: sluice-kv", "claimName: kv", "no file has the claim kv"),
    (POD, "{name: shm, mountPath: /dev/shm}", "{name: tmp, mountPath: /tmp}", "it mounts ['kv', 'models', 'tmp']"),
    (POD, "limits: {memory: 48Gi, nvidia.com/gpu: 1}", "limits: {memory: 48Gi, nvidia.com/gpu: 2}",
     "nvidia.com/gpu is"),
    (POD, "apps/v1", "apps/v1beta1", "Deployment of apps/v1beta1 is not known here"),
    (POD, "docs/deploying.md", "docs/deployment.md", "no file docs/deployment.md"),
    ("kubernetes/service.yaml", "targetPort: http", "targetPort: web", "Service: the pods have no port web"),
    ("kubernetes/service.yaml", "selector: {app.kubernetes.io/name: sluice}",
     "selector: {app.kubernetes.io/name: engine}", "Service: it selects"),
    ("kubernetes/service.yaml", "maxUnavailable: 1", "maxUnavailable: 2", "maxUnavailable is not 1"),
    (POD, "tcp://*:5557", "tcp://*:5556", "SLUICE_KV_EVENTS is tcp://*:5556, and kv-events 5557"),
    ("kubernetes/network-policy.yaml", """    - from:
        - podSelector:
            matchLabels: {sluice/reads-kv-events: "true"}
      ports:
""", "    - ports:\n", "everyone may read kv-events"),
    ("kubernetes/network-policy.yaml", "port: http", "port: web", "NetworkPolicy: the pods have no port web"),
    ("kubernetes/operator/service-monitor.yaml", "path: /metrics", "path: /stats", "ServiceMonitor: it reads /stats"),
    ("kubernetes/operator/service-monitor.yaml", "key: api-key", "key: key", "its secret is not the Deployment's"),
    ("routers/smg.sh", "smg 1.13.0", "smg 1.12.0", "it is not about smg 1.13.0"),
    ("routers/smg.sh", "check_smg.py", "check_smgs.py", "no file tools/clients/check_smgs.py"),
    ("routers/vllm-router.sh", "sluice serve --kv-events", "sluice serve --kv-event", "serve has no option --kv-event"),
    ("routers/vllm-router.sh", "--kv-events-replay", "--kv-events-again", "serve has no option --kv-events-again"),
    ("routers/vllm-router.sh", "vllm-router 0.1.17", "vllm-router 0.1.16", "it is not about vllm-router 0.1.17"),
    ("routers/llm-d.yaml", "blockSizeTokens: 256", "blockSizeTokens: 64", "llm-d.yaml: the block size is 64"),
    ("routers/llm-d.yaml", "socketPort: 5557", "socketPort: 5556", "llm-d.yaml: the port of events is 5556"),
    ("routers/llm-d.yaml", "pluginRef: token-load-scorer", "pluginRef: load-scorer", "no plugin load-scorer"),
    ("routers/llm-d.yaml", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "no metric vllm:gpu_cache"),
    ("sluice.env", "SLUICE_KV_STORE=", "SLUICE_STORE=", "no option is read from SLUICE_STORE"),
    ("alerts.yml", "vllm:num_requests_waiting", "vllm:num_requests_queued", "no metric vllm:num_requests_queued"),
]


@unittest.skipIf(yaml is None, "PyYAML is not there (Debian's python3-yaml)")
class CheckDeploy(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        # A program that has the options which the files name as they are; a planted name is none of them.
        names = set()
        for path in (ROOT / "deploy").rglob("*"):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                names |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
                names |= {"--" + name.lower().replace("_", "-") for name in re.findall(r"\bSLUICE_([A-Z_]+)", text)}
        self.program = Path(self.directory.name, "program")
        self.program.write_text("#!/bin/sh\ncat << 'EOF'\n" + "\n".join(sorted(names)) + "\nEOF\n")
        self.program.chmod(0o755)

    def check(self, deploy):
        done = subprocess.run([sys.executable, str(SCRIPT), "--program", str(self.program), "--deploy", str(deploy)],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_the_files_are_right(self):
        status, output = self.check(ROOT / "deploy")
        self.assertEqual(status, 0, output)
        self.assertIn("0 findings", output)

    def test_planted_errors_are_found(self):
        for file, old, new, finding in PLANTED:
            with self.subTest(file=file, new=new), tempfile.TemporaryDirectory() as directory:
                copy = Path(directory, "deploy")
                shutil.copytree(ROOT / "deploy", copy)
                text = (copy / file).read_text(encoding="utf-8")
                self.assertIn(old, text)
                (copy / file).write_text(text.replace(old, new, 1), encoding="utf-8")
                status, output = self.check(copy)
                self.assertEqual(status, 1, output)
                self.assertIn(finding, output)


if __name__ == "__main__":
    unittest.main()
