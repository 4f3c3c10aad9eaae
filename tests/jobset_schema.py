"""JobSet's published schema as far as our manifests go: names, types and bounds, no words.

`python tests/jobset_schema.py jobset.x-k8s.io_jobsets.yaml` writes jobset_schema.json beside the
tests of the manifest, from the CustomResourceDefinition that JobSet publishes
(config/components/crd/bases in its repository). What a manifest newly says is left out of the file
until then, and so is refused by the test.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

SCHEMA = Path(__file__).parent / "launcher" / "k8s" / "jobset_schema.json"
_KEPT = (
    "type", "required", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "x-kubernetes-int-or-string", "anyOf", "format",
)  # fmt: skip


def reduced(schema: dict[str, Any], said: list[Any]) -> dict[str, Any]:
    """The part of a schema that these values, all at its place, use; nothing else is allowed there.

    Args:
        said: what manifests have at this place.
    """
    found = {name: schema[name] for name in _KEPT if name in schema}
    if properties := schema.get("properties"):
        used = {
            name: [value[name] for value in said if name in value]
            for name in sorted({name for value in said for name in value})
        }
        unknown = used.keys() - properties.keys()
        if unknown:
            raise ValueError(f"the schema has no {', '.join(unknown)}; known: {sorted(properties)}")
        found["properties"] = {name: reduced(properties[name], used[name]) for name in used}
        found["additionalProperties"] = False
    elif isinstance(others := schema.get("additionalProperties"), dict):
        values = [value for each in said for value in each.values()]
        found["additionalProperties"] = reduced(others, values)
    if items := schema.get("items"):
        found["items"] = reduced(items, [value for each in said for value in each])
    return found


def main(definition: str) -> None:
    crd = yaml.safe_load(Path(definition).read_text())
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1alpha2"]
    manifests = [
        list(yaml.safe_load_all(path.read_text()))[1]
        for path in sorted(SCHEMA.parent.glob("manifest_*.yaml"))
    ]
    # Kubernetes knows the metadata of all that it has; the definition does not repeat it.
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found = reduced(spec, [manifest["spec"] for manifest in manifests])
    SCHEMA.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
