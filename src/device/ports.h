/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ports of the machine, in one place.
 *
 * | port          | device   | what                                                             |
 * | ------------- | -------- | ---------------------------------------------------------------- |
 * | 0x20 0xa0 ... | KVM      | PIC, PIT (0x40-0x43), speaker gate (0x61)                        |
 * | 0x64          | power    | write 0xfe: reset; reads 0 (a keyboard controller that is idle)  |
 * | 0x70 0x71     | cmos     | real-time clock: index, data                                     |
 * | 0x3f8-0x3ff   | serial   | 16550A, IRQ 4                                                    |
 * | 0x600         | power    | ACPI sleep control: 0x34 (S5 and enable) powers off              |
 * | 0x601         | power    | ACPI sleep status: reads 0                                       |
 * | 0x602         | power    | reset register: write 1                                          |
 * | 0x603         | power    | bit 0: the power button was pressed (a read clears it); IRQ 9    |
 * | 0x620         | movegen  | 32 bits. Read: how many moves this guest has made. Write: the    |
 * |               |          | pause across the last move as the guest measured it, microseconds |
 * | 0xcf9         | power    | reset control: a write with bit 2 set resets                     |
 */
#pragma once

#define PORT_KEYBOARD_COMMAND 0x64
#define PORT_CMOS             0x70
#define PORT_SERIAL           0x3f8
#define PORT_POWER            0x600
#define PORT_MOVEGEN          0x620
#define PORT_RESET_CONTROL    0xcf9

#define IRQ_SERIAL 4
#define IRQ_POWER  9
