"""The kinds of apps/v1, batch/v1 and policy/v1."""

from __future__ import annotations

from volplane.api import apps, batch, policy
from volplane.api.kind import selectable
from volplane.api.kinds.shared import CONTAINERS, REPLICAS, SCALE, STATUS, builtin_kind
from volplane.api.name_validation import label_problems

KINDS = (
    builtin_kind(
        apps.Deployment,
        "deployments.apps deploy",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.workloads.DeploymentsStrategy",
        immutable=("spec.selector",),
        generation="counted",
        columns=f"""
            Name
            Ready = ready_replicas()
            Up-to-date = status.updatedReplicas
            Available = status.availableReplicas
            Age
            {CONTAINERS}
            Selector* = selector_or_empty(spec.selector)
        """,
    ),
    builtin_kind(
        apps.ReplicaSet,
        "replicasets.apps rs",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.workloads.ReplicaSetStrategy",
        immutable=("spec.selector",),
        generation="counted",
        columns=f"""
            Name
            Desired#integer = spec.replicas?1
            {REPLICAS}
            {CONTAINERS}
            Selector* = selector(spec.selector)
        """,
    ),
    builtin_kind(
        apps.StatefulSet,
        "statefulsets.apps sts",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.statefulsets.StatefulSetStrategy",
        check_name=label_problems,  # it becomes the pods' host names
        generation="counted",
        columns=f"""
            Name
            Ready = ready_replicas()
            Age
            {CONTAINERS}
        """,
    ),
    builtin_kind(
        apps.DaemonSet,
        "daemonsets.apps ds",
        categories=("all",),
        subresources=(STATUS,),
        strategy="strategies.workloads.DaemonSetStrategy",
        immutable=("spec.selector",),
        generation="counted",
        columns=f"""
            Name
            Desired#integer = status.desiredNumberScheduled
            Current#integer = status.currentNumberScheduled
            Ready#integer = status.numberReady
            Up-to-date#integer = status.updatedNumberScheduled
            Available#integer = status.numberAvailable
            Node Selector = labels(spec.template.spec.nodeSelector)
            Age
            {CONTAINERS}
            Selector* = selector(spec.selector)
        """,
    ),
    builtin_kind(
        apps.ControllerRevision,
        "controllerrevisions.apps",
        strategy="strategies.statefulsets.ControllerRevisionStrategy",
        columns="""
            Name
            Controller = controller_owner(metadata.ownerReferences)
            Revision = revision
            Age
        """,
    ),
    builtin_kind(
        batch.Job,
        "jobs.batch",
        categories=("all",),
        subresources=(STATUS,),
        strategy="strategies.jobs.JobStrategy",
        generation="counted",
        propagation="Orphan",
        selectable=selectable("status.successful=status.succeeded|0"),
        columns=f"""
            Name
            Status = job_status()
            Completions = job_completions()
            Duration = job_duration(status)
            Age
            {CONTAINERS}
            Selector* = selector(spec.selector)
        """,
    ),
    builtin_kind(
        batch.CronJob,
        "cronjobs.batch cj",
        categories=("all",),
        subresources=(STATUS,),
        strategy="strategies.cronjobs.CronJobStrategy",
        generation="counted",
        columns="""
            Name
            Schedule = spec.schedule
            Timezone = spec.timeZone?<none>
            Suspend#boolean = spec.suspend?false
            Active#integer = count(status.active)
            Last Schedule = age(status.lastScheduleTime)|<none>
            Age
            Containers* = names(spec.jobTemplate.spec.template.spec.containers)
            Images* = images(spec.jobTemplate.spec.template.spec.containers)
            Selector* = selector(spec.jobTemplate.spec.selector)
        """,
    ),
    builtin_kind(
        policy.PodDisruptionBudget,
        "poddisruptionbudgets.policy pdb",
        subresources=(STATUS,),
        strategy="strategies.poddisruptionbudgets.PodDisruptionBudgetStrategy",
        unconditional_update=False,
        generation="counted",
        columns="""
            Name
            Min Available = text(spec.minAvailable)?N/A
            Max Unavailable = text(spec.maxUnavailable)?N/A
            Allowed Disruptions#integer = status.disruptionsAllowed
            Age
        """,
    ),
)
