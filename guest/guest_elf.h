/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in guest, a PVH ELF; an empty one on hosts that are not x86-64. */
#pragma once

extern const unsigned char guest_elf_start[], guest_elf_end[];
