"""The files in `deploy/monitoring` and `deploy/tls` against the server, and the backup of a store in use."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.settings import IntakeEntry, Settings
from rl_conductor_server.store import Store
from rl_conductor_server.store.audit import Chain
from server.chat_requests import post
from server.conftest import Serve

DEPLOY = Path(__file__).parents[2] / "deploy"
MONITORING = DEPLOY / "monitoring"
RULES = yaml.safe_load((MONITORING / "rules.yml").read_text())
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
DOCS = (DEPLOY.parent / "docs" / "deploying.md").read_text()


def expressions() -> list[str]:
    """All PromQL of rules and dashboard."""
    rules = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    return rules + [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def samples() -> dict[str, set[str]]:
    """The labels of each sample that the server may expose, by its name in Prometheus."""
    found: dict[str, set[str]] = {}
    for collector in Metrics().registry._collector_to_names:
        described: Any = collector
        suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[described._type]
        for suffix in suffixes:
            more = {"le"} if suffix == "_bucket" else set()
            found[described._name + suffix] = {*described._labelnames, *more}
    return found


@pytest.mark.parametrize("expression", expressions())
def test_rules_and_dashboard_use_metrics_and_labels_that_the_server_has(expression: str) -> None:
    known = samples()
    named = re.findall(r"conductor_\w+", expression)
    assert named or expression.startswith("up{")
    labels = {label for name in named for label in known[name]}
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    matched = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression)) - {"job"}
    assert grouped | matched <= labels
    assert expression.count("(") == expression.count(")")


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for expression in expressions() for name in re.findall(r"conductor_\w+", expression)}
    families = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in samples()}
    assert {name.removesuffix("_bucket") for name in shown} == families


def test_alerts_and_panels_are_named_once_and_described() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


async def test_the_scrape_example_reads_the_metrics_with_a_key(serve: Serve) -> None:
    scrape = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert scrape["rule_files"] == ["rules.yml"]
    (job,) = scrape["scrape_configs"]
    at = await serve(keys={"prometheus": {"sha256": hash_key("secret"), "tokens": 0, "metrics": True}})
    authorization = {"authorization": f"{job['authorization']['type']} secret"}
    await post(at, authorization)
    text = (await at.http.get(job["metrics_path"], headers=authorization)).text
    assert 'conductor_requests_total{path="/v1/chat/completions",status="429"} 1.0' in text


async def test_first_tokens_queue_reservations_and_lag_are_measured(serve: Serve) -> None:
    at = await serve()
    await post(at, stream=True)
    text = (await at.http.get("/metrics")).text
    assert 'conductor_first_token_seconds_count{model="conductor-mini"} 1.0' in text
    assert 'conductor_request_seconds_count{path="/v1/chat/completions"} 1.0' in text
    for gauge in ("conductor_queue_depth", "conductor_reserved_usd", "conductor_reserved_calls"):
        assert f"{gauge} 0.0" in text


def test_the_ingress_is_valid_and_leads_to_the_server_alone() -> None:
    ingress = yaml.safe_load((DEPLOY / "tls" / "ingress.yaml").read_text())
    kubernetes_validate.validate(ingress, "1.37", strict=True)
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert path["path"] == "/v1/"
    services = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "server.yaml").read_text()))
    service = next(one for one in services if one["kind"] == "Service")
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    size = ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert int(size.removesuffix("m")) * 2**20 == IntakeEntry().body_bytes
    assert f"reverse_proxy 127.0.0.1:{Settings().port}" in (DEPLOY / "tls" / "Caddyfile").read_text()


async def test_a_backup_of_a_store_in_use_is_complete_and_can_be_restored(serve: Serve, tmp_path: Path) -> None:
    (statement,) = re.findall(r"sqlite3 rl-conductor\.db \"(VACUUM INTO '([^']+)')\"", DOCS)
    at = await serve()
    await post(at)
    busy = asyncio.gather(*(post(at) for _ in range(20)))
    backup = tmp_path / "backup.db"
    source = sqlite3.connect(tmp_path / "runs.db")
    await at.service.store.write_queue.flush()
    source.execute(statement[0].replace(statement[1], str(backup)))
    source.close()
    await busy
    restored = await Store.open(f"sqlite:///{backup}")
    chain = Chain()
    lines = [line async for line in restored.audit_lines(chain)]
    rows = await restored.list_runs()
    assert chain.broken is None
    assert len(lines) >= 1
    done = [row for row in rows if row.status == "done"]
    assert len(done) == len(lines)
    assert await restored.get_trace(done[0].id) is not None
    await restored.aclose()
