"""own_objects: what our sources are compiled to, apart from the archives that are linked with it."""

def _own_objects_impl(ctx):
    objects = []
    for dep in ctx.attr.deps:
        for linker_input in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in linker_input.libraries:
                objects += library.pic_objects or library.objects or []
    return [DefaultInfo(files = depset(objects), runfiles = ctx.runfiles(objects))]

own_objects = rule(
    implementation = _own_objects_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
