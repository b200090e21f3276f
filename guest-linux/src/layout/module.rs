//! Offsets of what is read about modules.

use crate::btf::Btf;
use crate::btf::layout::{layout, offset};
use crate::missing::Missing;

/// `enum mod_mem_type` (include/linux/module.h, since 6.4).
const MOD_INIT_TEXT: usize = 4;
/// Bytes of a module's name that are read, at most (`MODULE_NAME_LEN` is 56).
const MAX_NAME: usize = 64;

layout! {
    /// `struct module` (include/linux/module.h) and what it points to.
    #[derive(Debug, Clone, Copy)]
    ModuleLayout {
        list: usize = "module.list",
        state: usize = "module.state",
        name: usize = "module.name",
        name_len: usize => |btf| {
            let name = btf.member_by_path("module.name").and_then(|name| btf.elements(name));
            Ok(name.unwrap_or(0).min(MAX_NAME))
        },
        /// The first name since 6.4, where MOD_TEXT is element 0 of the array `mem`; the second before.
        text_base: usize = "module.mem.base" | "module.core_layout.base",
        text_size: usize = "module.mem.size" | "module.core_layout.text_size",
        /// Base and size of the text that is freed once the module has started: `init_layout.base` and
        /// `.text_size` until 6.3, `mem[MOD_INIT_TEXT]` since.
        init_text: Option<(usize, usize)> => init_text,
        /// The description of the symbols; `None` in a kernel without them.
        kallsyms: Option<ModuleKallsymsLayout>,
        /// The description of the ORC tables; `None` in a kernel without them.
        orc: Option<ModuleOrcLayout>,
    }

    /// `struct mod_arch_specific` (arch/x86/include/asm/module.h), in `module.arch`.
    #[derive(Debug, Clone, Copy)]
    ModuleOrcLayout {
        /// Pointer to the addresses.
        addresses: usize = "module.arch.orc_unwind_ip",
        /// Pointer to the entries.
        entries: usize = "module.arch.orc_unwind",
        count: usize = "module.arch.num_orcs",
    }

    /// `struct mod_kallsyms` (include/linux/module.h), which `module.kallsyms` points to.
    #[derive(Debug, Clone, Copy)]
    ModuleKallsymsLayout {
        pointer: usize = "module.kallsyms",
        symtab: usize = "mod_kallsyms.symtab",
        num_symtab: usize = "mod_kallsyms.num_symtab",
        strtab: usize = "mod_kallsyms.strtab",
        typetab: usize = "mod_kallsyms.typetab",
    }
}

fn init_text(btf: &Btf<'_>) -> Result<Option<(usize, usize)>, Missing> {
    let find = |path| offset(btf, &[path]).ok();
    if let Some(base) = find("module.init_layout.base") {
        return Ok(find("module.init_layout.text_size").map(|size| (base, size)));
    }
    let element = btf.size_of("module_memory").filter(|&size| size > 0);
    Ok(element.and_then(|size| {
        let before = MOD_INIT_TEXT.checked_mul(size)?;
        Some((find("module.mem.base")?.checked_add(before)?, find("module.mem.size")?.checked_add(before)?))
    }))
}
